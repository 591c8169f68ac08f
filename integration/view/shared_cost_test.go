package view

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// BenchmarkShared measures real work in views of a shared file system with each choice of cache, beside the same work on the mount
// itself: seven rounds, in turns. It asserts nothing about time. SCOPEFS_TEST_VOLUME names the kind.
func BenchmarkShared(b *testing.B) {
	need.Program(b, "git")
	vol := harness.NewVolume(b)
	sides := []string{"mount", "auto", "coherent", "none"}
	one, _ := vol.NewHosts(b, map[string]string{"auto": "view: {cache: auto}", "coherent": "view: {cache: coherent}", "none": "view: {cache: none}"})
	one.Timeout = 30 * time.Minute
	one.Start()
	dirs := map[string]string{"mount": filepath.Join(vol.A, "mount")}
	require.NoError(b, os.Mkdir(dirs["mount"], 0o755))
	require.NoError(b, os.Chown(dirs["mount"], 1000, 1000))
	for _, side := range sides[1:] {
		dirs[side] = one.View(side)
	}

	archive := filepath.Join(one.Base, "tree.tar")
	tree := filepath.Join(b.TempDir(), "tree")
	for i := range 1000 {
		dir := filepath.Join(tree, fmt.Sprint(i/20))
		require.NoError(b, os.MkdirAll(dir, 0o755))
		require.NoError(b, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(strings.Repeat(fmt.Sprintln("line", i), 300)), 0o644))
	}
	out, err := exec.Command("tar", "cf", archive, "-C", filepath.Dir(tree), "tree").CombinedOutput()
	require.NoError(b, err, "%s", out)

	run := func(side, script string) time.Duration {
		cmd := exec.Command("bash", "-e", "-o", "pipefail", "-c", script)
		cmd.Dir = dirs[side]
		cmd.Env = append(os.Environ(), "HOME="+dirs[side], "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "ARCHIVE="+archive)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		require.NoError(b, err, "%s: %s: %s", side, script, out)
		return time.Since(began)
	}
	for _, side := range sides {
		run(side, `tar xf "$ARCHIVE" && git init -q tree && cd tree && git add . && git -c user.name=a -c user.email=a@localhost commit -qm first`)
	}
	load := func() string {
		text, _ := os.ReadFile("/proc/loadavg")
		return strings.Join(strings.Fields(string(text))[:3], " ")
	}
	fmt.Printf("%s, load %s\n\n| work | on the mount | auto | coherent | none |\n|---|---|---|---|---|\n", vol.Kind, load())
	for _, work := range []struct{ name, script string }{
		{"find -type f, 1,000 files", `[ "$(find tree -type f -not -path '*/.git/*' | wc -l)" = 1000 ]`},
		{"git status", `[ -z "$(git -C tree status --porcelain)" ]`},
		{"grep -r, 1,000 files", `[ "$(grep -rl --exclude-dir=.git 'line 7' tree | wc -l)" = 111 ]`},
		{"tar x, 1,000 files", `mkdir new && tar xf "$ARCHIVE" -C new`},
		{"rm -r, 1,000 files", `rm -r new`},
	} {
		took := map[string][]time.Duration{}
		for round := range 7 {
			for i := range sides {
				side := sides[(i+round)%len(sides)] // nobody is always first
				switch {
				case strings.HasPrefix(work.name, "tar"):
					run(side, "rm -rf new")
				case strings.HasPrefix(work.name, "rm"):
					run(side, `mkdir -p new && tar xf "$ARCHIVE" -C new`)
				}
				took[side] = append(took[side], run(side, work.script))
			}
		}
		median := func(side string) float64 {
			slices.Sort(took[side])
			return took[side][len(took[side])/2].Seconds() * 1000
		}
		fmt.Printf("| %s | %.0f ms |", work.name, median("mount"))
		for _, side := range sides[1:] {
			fmt.Printf(" %.2f× |", median(side)/median("mount"))
		}
		fmt.Println()
	}
	fmt.Printf("\nload %s\n", load())
}
