package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// pagesCmd writes what packages install beside the program. make install calls it.
func (a *app) pagesCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "pages DIR",
		Short:  "write the man pages and the completions of shells",
		Hidden: true,
		Long: `Writes DIR/man1 with a man page for each command, and DIR/scopefs.bash, DIR/_scopefs
(zsh) and DIR/scopefs.fish. The date in the pages is SOURCE_DATE_EPOCH, else today.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return writePages(c.Root(), words[0]) },
	}
}

func writePages(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "man1"), 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	plain(root)
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "scopefs " + Version, Manual: "scopefs"}, filepath.Join(dir, "man1")); err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	for name, write := range map[string]func(string) error{
		"scopefs.bash": func(name string) error { return root.GenBashCompletionFileV2(name, true) },
		"_scopefs":     root.GenZshCompletionFile,
		"scopefs.fish": func(name string) error { return root.GenFishCompletionFile(name, true) },
	} {
		if err := write(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("completions: %w", err)
		}
	}
	return nil
}

// plain escapes what the writer of man pages would take for Markdown: <id> for HTML, which
// it drops.
func plain(c *cobra.Command) {
	escape := strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`, "[", `\[`, "|", `\|`)
	c.Long, c.Short = escape.Replace(c.Long), escape.Replace(c.Short)
	for _, sub := range c.Commands() {
		plain(sub)
	}
}
