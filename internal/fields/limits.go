package fields

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The least values with which a shell and a few programs work in a view.
const (
	minOpenFiles  = 64
	minViewMemory = 1 << 20
)

// ParseOpenFiles reads a number of open files.
func ParseOpenFiles(s string) (int, error) {
	n, err := ParseCount(s)
	if err == nil && n > 0 && n < minOpenFiles {
		err = fmt.Errorf("%q is too few for programs to run: want %d or more", s, minOpenFiles)
	}
	return n, err
}

// ParseViewMemory reads a size in bytes for a view.
func ParseViewMemory(s string) (int64, error) {
	n, err := ParseSize(s)
	if err == nil && n > 0 && n < minViewMemory {
		err = fmt.Errorf("%q is too little for a view: want 1MiB or more", s)
	}
	return n, err
}

// minMemory is slightly more than a sandbox with the file tools' worker needs;
// with less, it cannot start. minCPU is the kernel's minimum: one millisecond
// of each period of 100 milliseconds.
const (
	minMemory = 16 << 20
	minCPU    = 0.01
)

// ParseMemory reads a size in bytes for a sandbox, such as 512MiB.
func ParseMemory(s string) (int64, error) {
	n, err := ParseSize(s)
	if err == nil && n > 0 && n < minMemory {
		err = fmt.Errorf("%q is too little for a sandbox to start: want 16MiB or more", s)
	}
	return n, err
}

// ParseCPU reads a number of processors, such as 1.5.
func ParseCPU(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return 0, fmt.Errorf("%q is no number of processors: write one like 1.5", s)
	}
	if n > 0 && n < minCPU {
		return 0, fmt.Errorf("%q is less than can be enforced: want 0.01 or more", s)
	}
	return n, nil
}

// The least values with which a program can start a project: git init makes 40 files.
const (
	minDisk  = 1 << 20
	minFiles = 100
)

// ParseDisk reads a size in bytes for what an agent's files take.
func ParseDisk(s string) (int64, error) {
	n, err := ParseSize(s)
	if err == nil && n > 0 && n < minDisk {
		err = fmt.Errorf("%q is too little for an agent's files: want 1MiB or more", s)
	}
	return n, err
}

// ParseFiles reads a number of files, such as 5000, 200k or 1M: thousands and millions.
func ParseFiles(s string) (int, error) {
	digits, unit := s, 1
	for suffix, n := range map[string]int{"k": 1000, "M": 1_000_000} {
		if d, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = d, n
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > math.MaxInt/unit {
		return 0, fmt.Errorf("%q is no number of files: write one like 5000, 200k or 1M", s)
	}
	if n *= unit; n > 0 && n < minFiles {
		err = fmt.Errorf("%q is too few files for a program to start: want %d or more", s, minFiles)
	}
	return n, err
}
