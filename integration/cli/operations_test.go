package cli

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// forms of a path: of a file, by the number of the task, and of its directory.
var forms = []struct{ name, file string }{
	{"./a", "./t%d/a"}, {"./a/../b", "./t%d/d/../b"}, {"../proj/a", "../proj/t%d/a"}, {"../lib/a", "../lib/t%d/a"}, {"../lib/a/../b", "../lib/t%d/d/../b"},
	{"a link to a file", "./t%d/lf"}, {"a link to a directory", "./t%d/ld/a"},
}

// operations on $P, a path of a form, beside which $T is the task's directory in the project.
var operations = []struct{ name, script string }{
	{"cat", "cat $P"}, {"head", "head -1 $P"}, {"ls", "ls $P"}, {"stat", "stat -c %s $P"}, {"find", "find $P"}, {"grep -r", "grep -r x $P"},
	{"cp from", "cp $P $T/out"}, {"cp to", "cp $T/src $P"}, {"mv from", "mv $P $T/moved"}, {"mv to", "mv $T/src $P"}, {"rm", "rm $P"},
	{"mkdir", "mkdir $P.d"}, {"touch", "touch $P $P.new"}, {"append", "echo y >>$P"}, {"overwrite", "echo y >$P"}, {"sed -i", "sed -i s/x/z/ $P"},
	{"ln -s", "ln -s a $P.l"}, {"chmod", "chmod 600 $P"},
}

// tasks makes the directories proj and lib of all tasks below top, and returns the script that does them.
func tasks(t *testing.T, top string) (script string, names []string) {
	t.Helper()
	var text strings.Builder
	for _, form := range forms {
		for _, op := range operations {
			i := len(names)
			names = append(names, op.name+", "+form.name)
			in, beside := fmt.Sprintf("proj/t%d/", i), fmt.Sprintf("lib/t%d/", i)
			harness.Plant(t, top, in+"a=x1\n", in+"b=x2\n", in+"src=x3\n", in+"d/f=x4\n", beside+"a=x5\n", beside+"b=x6\n", beside+"d/f=x7\n")
			require.NoError(t, os.Symlink("../../"+beside+"a", filepath.Join(top, in, "lf")))
			require.NoError(t, os.Symlink("../../lib/"+filepath.Base(beside), filepath.Join(top, in, "ld")))
			fmt.Fprintf(&text, "P=%s T=./t%d sh -c '%s' 2>&1; echo \"%d $?\"\n", fmt.Sprintf(form.file, i), i, op.script, i)
		}
	}
	return text.String(), names
}

// results splits what the script of tasks has printed by the task.
func results(out string) map[string]string {
	all, said := map[string]string{}, ""
	for line := range strings.Lines(out) {
		said += line
		var i, code int
		if n, _ := fmt.Sscanf(line, "%d %d", &i, &code); n == 2 && line == fmt.Sprintf("%d %d\n", i, code) {
			all[fmt.Sprint(i)], said = said, ""
		}
	}
	return all
}

// listed returns what is below a directory: modes, sizes and what links say.
func listed(t *testing.T, top string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		text, _ := os.ReadFile(name)
		if to, wrong := os.Readlink(name); wrong == nil {
			text = []byte(to)
		}
		rel, _ := filepath.Rel(top, name)
		if err == nil {
			all[rel] = fmt.Sprintf("%v %q", info.Mode(), text)
		}
		return err
	}))
	return all
}

// TestOperations: 18 operations on 7 forms of a path do in a sandbox what they do on the host, with a second directory that is there,
// and with one that the operator opens at the first use.
func TestOperations(t *testing.T) {
	host := t.TempDir()
	script, names := tasks(t, host)
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = host + "/proj"
	out, err := cmd.Output()
	require.NoError(t, err)
	want, after := results(string(out)), listed(t, host)
	require.Len(t, want, 126)
	for with, asks := range map[string]int{"lib": 0, "*:ask": 1} {
		top := t.TempDir()
		tasks(t, top)
		h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj\nview: {changes: kept}"})
		quiet := person(t, h, "approve")
		out, stderr, _ := h.Try("run", "a", "-q", "--with", top+"/"+with, "--", "sh", "-c", script)
		asked := quiet()
		got, is := results(out), listed(t, top)
		var failed []string
		for i, name := range names {
			same := want[fmt.Sprint(i)] == got[fmt.Sprint(i)]
			for _, all := range []map[string]string{after, is} {
				for rel := range all {
					if strings.Contains(rel, fmt.Sprintf("/t%d/", i)) && after[rel] != is[rel] {
						same = false
					}
				}
			}
			if !same {
				failed = append(failed, fmt.Sprintf("%s: %s", name, strings.TrimSpace(got[fmt.Sprint(i)])))
			}
		}
		t.Logf("--with %s: %d of %d work, %d questions; not: %s", with, len(names)-len(failed), len(names), len(asked), failed)
		assert.LessOrEqual(t, len(failed), len(names)*2/100, "--with %s: %s %s", with, failed, stderr)
		assert.LessOrEqual(t, len(asked), asks, asked)
	}
}
