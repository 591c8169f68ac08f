package doctor

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// buildOf returns which build a program is of: the tag scopefs_VERSION that make build builds all programs with, "" without one. With
// nil it is this program.
func buildOf(program *os.File) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if program != nil {
		var err error
		if info, err = buildinfo.ReadFile(fmt.Sprintf("/proc/self/fd/%d", program.Fd())); err != nil {
			return "", err
		}
	} else if !ok {
		return "", errors.New("no build information")
	}
	for _, s := range info.Settings {
		if s.Key != "-tags" {
			continue
		}
		for tag := range strings.SplitSeq(s.Value, ",") {
			if version, ok := strings.CutPrefix(tag, "scopefs_"); ok {
				return version, nil
			}
		}
	}
	return "", nil
}
