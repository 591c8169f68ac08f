package journal

import (
	"fmt"
	"strconv"
	"strings"
)

// The names of the entries of a history's directory.
const (
	openSuffix = ".open"
	Name       = "journal"
)

// OpenName is the name of a generation that is being written.
func OpenName(began uint64) string { return fmt.Sprintf("%016x%s", began, openSuffix) }

// EndedName is the name of a generation that has ended and keeps so many bytes.
func EndedName(began uint64, bytes int64) string {
	return fmt.Sprintf("%016x-%x", began, (bytes+1023)/1024)
}

// ParseName returns when the generation of a directory began, and what it keeps if it has ended.
func ParseName(name string) (began uint64, bytes int64, ended, ok bool) {
	if text, open := strings.CutSuffix(name, openSuffix); open {
		began, err := strconv.ParseUint(text, 16, 64)
		return began, 0, false, err == nil && len(text) == 16
	}
	first, size, _ := strings.Cut(name, "-")
	began, err := strconv.ParseUint(first, 16, 64)
	kib, bad := strconv.ParseInt(size, 16, 64)
	return began, kib << 10, true, err == nil && bad == nil && len(first) == 16
}
