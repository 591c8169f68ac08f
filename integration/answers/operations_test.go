package answers

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// forms are seven ways to write a path: in the project, in the project by its name, in another directory, and by a link to that. %s is
// a name.
var forms = []string{"./%s", "./d/../%s", "../proj/%s", "../lib/%s", "../lib/d/../%s", "./link-%s", "./lib/%s"}

// endings are what a message ends with, by the letters of operations.
var endings = map[byte]string{'A': "(No such file or directory|Directory nonexistent)", 'R': "Read-only file system", 'D': "Permission denied"}

// operations are the routine ones on a path $p, which is there but for mkdir, and what becomes of them in each form: "." it works, or a
// letter of endings. The operator is asked about none. ../lib is the system's in a sandbox, so it is read-only.
var operations = []struct{ name, command, forms string }{
	{"cat", "cat $p", "..AAADD"},
	{"head", "head $p", "..AAADD"},
	{"ls", "ls $p", "..AAADD"},
	{"stat", "stat $p", "..AAADD"},
	{"find", "find $p", "..AAA.D"},
	{"grep -r", "grep -r x $p", "..AAADD"},
	{"cp from", "cp $p new", "..AAADD"},
	{"cp to", "cp source $p", "..ARADD"},
	{"mv from", "mv $p new", "..AAA.D"},
	{"mv to", "mv source $p", "..ARA.D"},
	{"rm", "rm $p", "..AAA.D"},
	{"mkdir", "mkdir $p-new", "..ARA.D"},
	{"touch", "touch $p", "..ARADD"},
	{"append", "echo more >>$p", "..ARADD"},
	{"overwrite", "echo other >$p", "..ARADD"},
	{"sed -i", "sed -i s/x/y/ $p", "..AAADD"},
	{"ln -s", "ln -s $p new", "..DDDDD"},
	{"chmod", "chmod 600 $p", "..AAADD"},
}

// TestOperations: of 126 routine commands those in the project work, those beyond it do not, and each failure names the path.
func TestOperations(t *testing.T) {
	for _, program := range []string{"find", "grep", "sed", "stat"} {
		need.Program(t, program)
	}
	h := harness.LayOut(t, map[string]string{"proj": "view: {changes: kept}"})
	lib := filepath.Join(h.Base, "agents/lib")
	var script strings.Builder
	script.WriteString("try() { p=$1; rm -rf new; echo s >source; sh -c \"$2\" >/dev/null 2>said; echo \"$? $(head -1 said)\"; }\nexport p\n")
	for i, op := range operations {
		for j, form := range forms {
			name := fmt.Sprintf("f%d.%d", i, j)
			for _, dir := range []string{h.Scope("proj"), lib} {
				harness.Plant(t, dir, name+"=x\n", "d/")
			}
			if j == 5 {
				require.NoError(t, os.Symlink("../lib/"+name, h.Scope("proj", "link-"+name)))
			}
			fmt.Fprintf(&script, "try %s '%s'\n", fmt.Sprintf(form, name), op.command)
		}
	}
	require.NoError(t, os.Symlink("../lib", h.Scope("proj", "lib")))
	harness.Plant(t, h.Scope("proj"), "ops.sh="+script.String())
	before := harness.Dumped(t, lib, 0)
	h.Start()
	out, stderr, code := h.Try("run", "-T", "proj", "--", "sh", "ops.sh")
	require.Zero(t, code, stderr)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 126+1)
	for i, op := range operations {
		for j, form := range forms {
			path := fmt.Sprintf(form, fmt.Sprintf("f%d.%d", i, j))
			status, said, _ := strings.Cut(lines[i*len(forms)+j], " ")
			if op.forms[j] == '.' {
				assert.Equal(t, "0", status, "%s %s: %s", op.name, path, said)
				continue
			}
			if op.name == "ln -s" {
				path = "new"
			}
			assert.NotEqual(t, "0", status, "%s %s", op.name, path)
			assert.Regexp(t, regexp.QuoteMeta(path)+".*: "+endings[op.forms[j]]+"$", said, op.name)
		}
	}
	harness.SameTrees(t, before, harness.Dumped(t, lib, 0), "the other directory")
	violations := h.Must("audit", "--verdict", "violation")
	for _, name := range []string{"link-f0.5", "link-f14.5", "new"} {
		assert.Regexp(t, ` `+regexp.QuoteMeta(name)+` -> `, violations, "the log names a link that leads out, and where to")
	}
}
