package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
)

// Version is the version of scopefs. The linker sets it (see Makefile).
var Version = "devel"

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  exit.Args(cobra.NoArgs),
		RunE:  func(*cobra.Command, []string) error { return a.version() },
	}
}

func (a *app) version() error {
	_, err := fmt.Fprintf(a.out, "scopefs %s\n", versionText())
	return err
}

// versionText returns the version, the commit, and for what it was built.
func versionText() string {
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = " " + s.Value
			}
		}
	}
	return fmt.Sprintf("%s%s %s %s/%s", Version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
