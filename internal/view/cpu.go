package view

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// cpuLimited reports whether our control group, or one that it is in, may not
// use every processor all the time: cgroup v2 cpu.max, v1 cpu.cfs_quota_us.
// Views inherit the group. root is "/" but for tests.
func cpuLimited(root string) bool {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // id:controllers:path, cgroups(7)
		if len(part) != 3 {
			continue
		}
		dir, file, free := "", "cpu.max", "max"
		if part[1] != "" {
			dir, file, free = part[1], "cpu.cfs_quota_us", "-1"
			if !slices.Contains(strings.Split(dir, ","), "cpu") {
				continue
			}
		}
		for at := part[2]; ; at = path.Dir(at) {
			limit, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", dir, at, file))
			if err == nil && !strings.HasPrefix(string(limit), free) {
				return true
			}
			if at == "/" || at == "." {
				break
			}
		}
	}
	return false
}
