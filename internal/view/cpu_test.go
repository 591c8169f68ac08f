package view

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCPULimited(t *testing.T) {
	for name, c := range map[string]struct {
		own   string
		files map[string]string
		want  bool
	}{
		"nothing known": {"", nil, false},
		"v2, free":      {"0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n"}, false},
		"v2, its own":   {"0::/a/b\n", map[string]string{"a/b/cpu.max": "50000 100000\n"}, true},
		"v2, above":     {"0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, true},
		"v2, container": {"0::/\n", map[string]string{"cpu.max": "150000 100000\n"}, true},
		"v1, free":      {"4:cpu,cpuacct:/a\n3:cpuset:/a\n", map[string]string{"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n"}, false},
		"v1, above":     {"4:cpu,cpuacct:/a/b\n", map[string]string{"cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n"}, true},
		"v1, another":   {"4:cpuset:/a\n", map[string]string{"cpuset/a/cpu.cfs_quota_us": "50000\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
			}
			write("proc/self/cgroup", c.own)
			for file, text := range c.files {
				write(filepath.Join("sys/fs/cgroup", file), text)
			}
			assert.Equal(t, c.want, cpuLimited(root))
		})
	}
}
