// Package version has the version of this build, which every program of scopefs prints alike.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the version of scopefs. The linker sets it (see Makefile).
var Version = "devel"

// Text returns the version, the commit, and for what it was built.
func Text() string {
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
