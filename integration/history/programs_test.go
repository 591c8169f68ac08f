package history

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// sh runs a script in a directory.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0", "GIT_AUTHOR_NAME=a",
		"GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=init.defaultBranch",
		"GIT_CONFIG_VALUE_0=main", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)
	return string(out)
}

// TestPrograms: what real programs do in a view is taken back, byte for byte.
func TestPrograms(t *testing.T) {
	need.Long(t, "it runs git and sqlite many times")
	need.Once(t)
	for _, name := range []string{"git", "python3", "tar", "sed"} {
		need.Program(t, name)
	}
	h := harness.LayOut(t, map[string]string{"passed": "view: {changes: kept, xattrs: true}", "mediated": "view: {changes: kept, data: mediated}",
		"protected": "view: {changes: kept}\nprotect: ['*']"})
	h.Timeout = 15 * time.Minute // a busy host takes minutes
	k := started(h)
	const made = `git init -q repo; cd repo; mkdir -p src/deep/er docs
for i in $(seq 60); do echo "line $i" > src/f$i; echo "text $i" > src/deep/er/g$i; done
seq 20000 > docs/long; ln -s ../src/f1 docs/link; ln src/f2 docs/hard; printf '#!/bin/sh\n' > run; chmod 755 run
git add -A; git commit -qm one; seq 9 >> docs/long; git commit -qam two; git branch other
cd ..; python3 -c 'import sqlite3
c = sqlite3.connect("db"); c.execute("create table t (a, b)"); c.executemany("insert into t values (?, ?)", [(i, "x" * i) for i in range(300)]); c.commit()'
tar cf all.tar repo; mkdir plain; cp -a repo/src plain/`
	for id, scripts := range map[string][]string{
		"passed": {
			`git clone -q repo copy; cd copy; git checkout -q -b new; seq 5 > new; git add new; git commit -qm new; git push -q origin new; git gc -q`,
			`cd repo; sed -i s/line/LINE/ src/f*; git commit -qam three; git checkout -q other; git merge -q main; git gc -q --prune=now; git stash list`,
			`cd repo; git rm -qr src; git commit -qm none; rm -rf docs; git reset -q --hard HEAD~1; git repack -adq; git worktree add -q ../tree`,
			`rm -rf repo`,
			`rm -rf plain/src/deep; mv plain/src plain/moved; mkdir plain/src; echo x > plain/src/f1; tar xf all.tar -C plain; tar xf all.tar`,
			`mkdir -p m/node_modules; cd m/node_modules; for i in $(seq 150); do mkdir -p p$i/lib; echo "{}" > p$i/package.json; echo $i > p$i/lib/index.js; done
			 mkdir .bin; for i in $(seq 40); do ln -s ../p$i/lib/index.js .bin/p$i; done; mv p1 .p1-x; mkdir p1; rm -rf .p1-x; cd ..; mv node_modules old; cp -a old node_modules; rm -rf old`,
		},
		"mediated": {
			`cd repo; git checkout -q other; sed -i s/text/TEXT/ src/deep/er/*; git commit -qam four; git gc -q`,
			`cp -a repo other; find other -links +1 -type f; rm -rf repo; mv other repo`,
		},
		"protected": { // the view puts files of git that it judges in their places
			`cd repo; git config user.name other; git checkout -q other; sed -i s/text/TEXT/ src/deep/er/*; git commit -qam four; git gc -q`,
			`cd repo; sed -i s/line/LINE/ src/f*; git commit -qam three; git checkout -q other; git merge -q main; git rm -qr src; git commit -qm none; git reset -q --hard HEAD~1`,
			`git init -q new; cd new; git config core.filemode true; seq 5 > f; git add f; git commit -qm new; cd ..; mv repo/src moved; rm -r repo; git init -q repo; cd repo; git commit -q --allow-empty -m first`,
		},
	} {
		t.Run(id, func(t *testing.T) {
			scripts = append(scripts, `python3 -c 'import sqlite3
c = sqlite3.connect("db"); c.execute("delete from t where a % 2"); c.execute("create index i on t (b)"); c.commit(); c.execute("vacuum")
c.execute("pragma journal_mode = wal"); c.execute("insert into t values (1, 2)"); c.commit()'`)
			sh(t, k.View(id), made)
			for i, script := range scripts {
				view, below := harness.Dumped(t, k.View(id), harness.Times|harness.Links), harness.Dumped(t, k.Scope(id), harness.Times)
				name := string(rune('a' + i))
				k.checkpoint(scopeID(id), name)
				sh(t, k.View(id), script)
				assert.NotEqual(t, below, harness.Dumped(t, k.Scope(id), harness.Times))
				problems := k.undo(scopeID(id), name)
				assert.Empty(t, problems, script)
				harness.SameTrees(t, below, harness.Dumped(t, k.Scope(id), harness.Times), script)
				harness.SameTrees(t, view, harness.Dumped(t, k.View(id), harness.Times|harness.Links), script)
				if _, err := os.Stat(k.View(id, "repo")); assert.NoError(t, err) {
					sh(t, k.View(id, "repo"), `git fsck --strict --full; test -z "$(git status --porcelain)"`)
				}
				sh(t, k.View(id), `python3 -c 'import sqlite3; assert sqlite3.connect("file:db?mode=ro", uri=True).execute("pragma integrity_check").fetchone() == ("ok",)'`)
			}
		})
	}
}
