// Command pages writes what packages install beside the program: DIR/man1 with a man page
// for each command, and the completions DIR/scopefs.bash, DIR/_scopefs (zsh) and
// DIR/scopefs.fish. The date in the pages is SOURCE_DATE_EPOCH, else today. make build
// runs it. It is no command of scopefs, because the libraries that write man pages took a
// seventh of the time in which each process of scopefs starts.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/scopefs/scopefs/internal/cli"
	"github.com/scopefs/scopefs/internal/version"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pages DIR")
		os.Exit(2)
	}
	if err := write(cli.Command(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

func write(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "man1"), 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true
	plain(root)
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "scopefs " + version.Version,
		Manual: "scopefs"}, filepath.Join(dir, "man1")); err != nil {
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
