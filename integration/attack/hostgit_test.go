package attack

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// hostGit runs git of the host in a directory under strace. It finds a canary: a program
// "git-remote-canary" and a repository "canary-outside", which is beside and above the
// agent's files and has a secret.
type hostGit struct {
	t       *testing.T
	h       *harness.Host
	outside string // the repository
	secret  string // the name of the object that it has
}

func newHostGit(t *testing.T, h *harness.Host) *hostGit {
	need.Program(t, "strace")
	g := &hostGit{t: t, h: h, outside: filepath.Join(h.Base, "agents/canary-outside")}
	program := filepath.Join(h.Base, "canary-bin/git-remote-canary")
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	harness.Executable(t, program, []byte("#!/bin/sh\ntouch \"${0%/*}/planted\"\n"))
	g.setUp(filepath.Dir(g.outside), "init -q canary-outside")
	require.NoError(t, os.WriteFile(g.outside+"/secret", []byte("a secret of the host\n"), 0o644))
	g.setUp(g.outside, "add .", "commit -q -m secret", "repack -adq", "multi-pack-index write")
	g.secret = strings.TrimSpace(g.setUp(g.outside, "rev-parse HEAD:secret"))
	return g
}

func (g *hostGit) command(dir string, argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_EDITOR=true", "GIT_TERMINAL_PROMPT=0",
		"GIT_SSH_COMMAND=false", "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@y", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@y",
		"PATH="+g.h.Base+"/canary-bin:"+os.Getenv("PATH"))
	return cmd
}

// setUp runs commands of git that must succeed, and returns what they print.
func (g *hostGit) setUp(dir string, commands ...string) string {
	var all []byte
	for _, command := range commands {
		out, err := g.command(dir, append([]string{"git", "-c", "protocol.file.allow=always"}, strings.Fields(command)...)...).CombinedOutput()
		require.NoError(g.t, err, "git %s: %s", command, out)
		all = append(all, out...)
	}
	return string(all)
}

// harm runs commands of git and returns what they did that an agent must not cause.
func (g *hostGit) harm(dir string, commands ...string) (harm []string) {
	trace := filepath.Join(g.t.TempDir(), "trace")
	for _, command := range commands {
		argv := append([]string{"strace", "-f", "--seccomp-bpf", "-qq", "-s", "300", "-e", "trace=%file", "-o", trace, "git"}, strings.Fields(command)...)
		out, _ := g.command(dir, argv...).CombinedOutput()
		g.t.Logf("git %s: %.300s", command, out)
		for line := range strings.Lines(harness.ReadAll(g.t, trace)) {
			if strings.Contains(line, "canary-outside") && !strings.Contains(line, "execve(") {
				harm = append(harm, command+" reached out: "+line)
				break
			}
		}
	}
	for _, top := range []string{dir, g.outside, filepath.Join(g.h.Base, "canary-bin")} {
		_ = filepath.WalkDir(top, func(name string, _ os.DirEntry, err error) error {
			if err == nil && filepath.Base(name) == "planted" {
				harm = append(harm, "executed: "+name)
				_ = os.Remove(name)
			}
			return nil
		})
	}
	return harm
}

// gitAttack is what an agent writes for git of the host to find.
type gitAttack struct {
	file    string // in the view; git makes name.lock and renames it
	inPlace bool   // git does not rename it
	text    string
	host    []string // commands of the host that would do harm
}

// gitAttacks returns the attacks on a repository that prepare made. up leads from the
// repository to the directory that has canary-outside.
func (g *hostGit) gitAttacks(dir string) map[string]gitAttack {
	config := harness.ReadAll(g.t, filepath.Join(dir, ".git/config"))
	swap := func(file, path string) string { // the index with another path of the same length
		old := "long/name/of/a/file/that/is/replaced"
		require.LessOrEqual(g.t, len(path), len(old))
		text := harness.ReadAll(g.t, filepath.Join(dir, file))
		require.Contains(g.t, text, old)
		return strings.Replace(text, old, path+strings.Repeat("x", len(old)-len(path)), 1)
	}
	shared, err := filepath.Glob(filepath.Join(dir, "split/.git/sharedindex.*"))
	require.NoError(g.t, err)
	require.Len(g.t, shared, 1)
	split := "split/.git/" + filepath.Base(shared[0])
	zero := strings.Repeat("0", 39) + "1"
	return map[string]gitAttack{
		"name is a path":      {".git/config", false, config + "[remote \"../../canary-outside\"]\n\tfetch = +refs/heads/*:refs/remotes/x/*\n", []string{"fetch --all"}},
		"name is a helper":    {".git/config", false, config + "[remote \"canary::x\"]\n\tfetch = +refs/heads/*:refs/remotes/x/*\n", []string{"fetch --all"}},
		"name is an option":   {".git/config", false, config + "[remote \"--upload-pack=touch planted;git-upload-pack\"]\n\tfetch = x\n[remote \"origin\"]\n\turl = .\n", []string{"fetch --all"}},
		"remote is a path":    {".git/config", false, config + "[branch \"main\"]\n\tremote = ../../canary-outside\n\tmerge = refs/heads/main\n", []string{"fetch"}},
		"url is a path":       {".git/config", false, config + "[remote \"o\"]\n\turl = ../../canary-outside\n\tfetch = x\n", []string{"fetch --all"}},
		"fsmonitor":           {".git/config", false, strings.Replace(config, "[core]\n", "[core]\n\tfsmonitor = touch planted; false\n", 1), []string{"status"}},
		"include":             {".git/config", false, config + "[include]\n\tpath = ../../../canary-outside/.git/config\n", []string{"status"}},
		"index of a worktree": {"bare.git/worktrees/wt/index", false, swap("bare.git/worktrees/wt/index", "../../../canary-outside/planted"), []string{"-C wt restore ."}},
		"index of a module":   {".git/modules/sub/index", false, swap(".git/modules/sub/index", "../../../canary-outside/planted"), []string{"-C sub restore ."}},
		"shared index":        {split, false, swap(split, "../../../canary-outside/planted"), []string{"-C split restore ."}},
		"conflicts":           {".git/MERGE_RR", false, zero + "\t../../canary-outside/secret\x00", []string{"commit --allow-empty -m x"}},
		"alternates":          {".git/objects/info/alternates", false, g.outside + "/.git/objects\n", []string{"cat-file -p " + g.secret}},
		"list of packs":       {".git/objects/pack/multi-pack-index", false, g.packList("../../../../../canary-outside/.git/objects/pack/"), []string{"cat-file -p " + g.secret, "gc -q"}},
		"worktree":            {".git/worktrees/w/gitdir", true, g.outside + "/.git\n", []string{"worktree list"}},
		"common directory":    {".git/worktrees/w/commondir", true, "../../../../../canary-outside/.git\n", []string{"-C tree status"}},
		"pointer":             {"tree/.git", true, "gitdir: ../../../canary-outside/.git\n", []string{"-C tree status"}},
		"worktree of a module": {".git/modules/sub/config", false, strings.Replace(harness.ReadAll(g.t, filepath.Join(dir, ".git/modules/sub/config")), "../../../sub", "../../../../../canary-outside", 1),
			[]string{"-C sub status"}},
	}
}

// prepare makes a repository with a submodule, worktrees, a bare repository and a split
// index on the host.
func (g *hostGit) prepare(dir string) {
	long := "long/name/of/a/file/that/is/replaced"
	harness.Plant(g.t, dir, "split/"+long+"=x", "local/"+long+"=x", "f")
	for _, repository := range []string{"split", "local"} {
		g.setUp(filepath.Join(dir, repository), "init -q -b main", "add .", "commit -q -m x")
	}
	g.setUp(filepath.Join(dir, "split"), "update-index --split-index", "config user.name x")
	g.setUp(dir, "clone -q --bare local bare.git", "-C bare.git worktree add -q ../wt", "init -q -b main .", "add f", "commit -q -m x",
		"submodule --quiet add ./local sub", "worktree add -q tree")
	require.NoError(g.t, os.Rename(filepath.Join(dir, ".git/worktrees/tree"), filepath.Join(dir, ".git/worktrees/w")))
	for tree, repository := range map[string]string{"tree": ".git/worktrees/w", "wt": "bare.git/worktrees/wt"} { // for a copy of dir, too
		require.NoError(g.t, os.WriteFile(filepath.Join(dir, tree, ".git"), []byte("gitdir: ../"+repository+"\n"), 0o644))
	}
	id := filepath.Join(dir, ".git/rr-cache", strings.Repeat("0", 39)+"1")
	require.NoError(g.t, os.MkdirAll(id, 0o755))
	require.NoError(g.t, os.WriteFile(filepath.Join(id, "preimage"), nil, 0o644))
}

// packList returns the list of packs of the repository outside, with paths to these.
func (g *hostGit) packList(to string) string {
	old := []byte(harness.ReadAll(g.t, filepath.Join(g.outside, ".git/objects/pack/multi-pack-index")))
	count := int(old[6])
	at := func(i int) uint64 { return binary.BigEndian.Uint64(old[16+12*i:]) }
	body, table := []byte{}, bytes.Clone(old[:12])
	for i := range count {
		chunk := old[at(i):at(i+1)]
		name := old[12+12*i:][:4]
		if string(name) == "PNAM" {
			chunk = append([]byte(to), append(bytes.TrimRight(chunk, "\x00"), 0)...)
			chunk = append(chunk, make([]byte, (4-len(chunk)%4)%4)...)
		}
		table = binary.BigEndian.AppendUint64(append(table, name...), uint64(12+12*(count+1)+len(body)))
		body = append(body, chunk...)
	}
	table = binary.BigEndian.AppendUint64(append(table, 0, 0, 0, 0), uint64(12+12*(count+1)+len(body)))
	all := append(table, body...)
	sum := sha1.Sum(all)
	return string(append(all, sum[:]...))
}

// write writes a file in the view as git does.
func (a gitAttack) write(view string) error {
	name := filepath.Join(view, a.file)
	if a.inPlace {
		return os.WriteFile(name, []byte(a.text), 0o644)
	}
	if err := os.WriteFile(name+".lock", []byte(a.text), 0o644); err != nil {
		return err
	}
	defer os.Remove(name + ".lock")
	return os.Rename(name+".lock", name)
}

// TestProtectHostGit: what an agent writes makes git of the host execute nothing, and neither
// read nor write outside of the agent's files. Each attack succeeds where nothing is
// protected.
func TestProtectHostGit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	g := newHostGit(t, h)
	for _, agent := range []string{"a", "free"} {
		g.prepare(h.Scope(agent, "master"))
		for name, attack := range g.gitAttacks(h.Scope(agent, "master")) {
			dir := strings.ReplaceAll(name, " ", "-")
			out, err := exec.Command("cp", "-a", h.Scope(agent, "master"), h.Scope(agent, dir)).CombinedOutput()
			require.NoError(t, err, "%s", out)
			err = attack.write(h.View(agent, dir))
			assert.Equal(t, agent == "free", err == nil, "%s: %v", name, err)
			harm := g.harm(h.Scope(agent, dir), attack.host...)
			assert.Equal(t, agent == "free", len(harm) > 0, "%s: %s: %v", agent, name, harm)
		}
	}
}

// TestProtectHostGitUntracked: git status of the host lists a directory that the untracked cache
// of an index names. The view lets no cache in that names one elsewhere.
func TestProtectHostGitUntracked(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	g := newHostGit(t, h)
	for _, agent := range []string{"a", "free"} {
		dir, outside := h.Scope(agent, "r"), "../../canary-outside"
		inside := strings.Repeat("u", len(outside))
		harness.Plant(t, dir, inside+"/file", "f")
		g.setUp(dir, "init -q", "add f")
		require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-time.Hour))) // git trusts no cache of a directory as new as the index
		g.setUp(dir, "update-index --untracked-cache", "status", "status")
		index := filepath.Join(dir, ".git/index")
		require.Contains(t, harness.ReadAll(t, index), inside+"\x00")
		evil := strings.ReplaceAll(harness.ReadAll(t, index), inside+"\x00", outside+"\x00")
		err := gitAttack{file: ".git/index", text: evil}.write(h.View(agent, "r"))
		assert.Equal(t, agent == "free", err == nil, "%v", err)
		harm := g.harm(dir, "status")
		assert.Equal(t, agent == "free", len(harm) > 0, "%s: %v", agent, harm)
	}
}

// TestProtectHostGitLink: git commit of the host writes its message, which an agent may prepare,
// through a link at COMMIT_EDITMSG. The view makes no link there, so that the message does not
// become the pointer of a worktree.
func TestProtectHostGitLink(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	g := newHostGit(t, h)
	for _, agent := range []string{"a", "free"} {
		dir := h.Scope(agent, "r")
		harness.Plant(t, dir, "f")
		g.setUp(dir, "init -q -b main", "add f", "commit -q -m x", "worktree add -q w")
		require.NoError(t, os.Remove(h.View(agent, "r/.git/COMMIT_EDITMSG")))
		err := os.Symlink("worktrees/w/gitdir", h.View(agent, "r/.git/COMMIT_EDITMSG"))
		assert.Equal(t, agent == "free", err == nil, "%v", err)
		require.NoError(t, os.WriteFile(h.View(agent, "r/.git/MERGE_MSG"), []byte(g.outside+"/.git\n"), 0o644))
		harm := g.harm(dir, "commit -q --allow-empty --no-edit", "worktree list", "worktree repair")
		assert.Equal(t, agent == "free", len(harm) > 0, "%s: %v", agent, harm)
	}
}

// TestProtectHostGitSequencer: git cherry-pick --continue of the host executes git-merge-STRATEGY,
// with the strategy of sequencer/opts. The view accepts git's own strategies.
func TestProtectHostGitSequencer(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "free": ""})
	g := newHostGit(t, h)
	for _, agent := range []string{"a", "free"} {
		dir, view := h.Scope(agent, "r"), h.View(agent, "r")
		harness.Plant(t, dir, "f", "git-merge-../", "evil=#!/bin/sh\ntouch planted\n")
		require.NoError(t, os.Chmod(filepath.Join(dir, "evil"), 0o755))
		g.setUp(dir, "init -q -b main", "add f", "commit -q -m one", "checkout -q -b other")
		for _, name := range []string{"2", "3"} {
			harness.Plant(t, dir, name)
			g.setUp(dir, "add "+name, "commit -q -m "+name)
		}
		g.setUp(dir, "checkout -q main", "branch mine")
		g.setUp(view, "cherry-pick -x --strategy=ort -X theirs other~1 other", "reset -q --hard mine")

		head := g.setUp(dir, "rev-parse HEAD")
		todo := "pick " + strings.TrimSpace(g.setUp(dir, "rev-parse other~1")) + " 2\npick " + strings.TrimSpace(g.setUp(dir, "rev-parse other")) + " 3\n"
		harness.Plant(t, view, ".git/sequencer/head="+head, ".git/sequencer/abort-safety="+head, ".git/sequencer/todo="+todo)
		err := gitAttack{file: ".git/sequencer/opts", text: "[options]\n\tstrategy = ../../evil\n"}.write(view)
		assert.Equal(t, agent == "free", err == nil, "%v", err)
		harm := g.harm(dir, "cherry-pick --continue")
		assert.Equal(t, agent == "free", len(harm) > 0, "%s: %v", agent, harm)
	}
}

// TestProtectHostGitMixed: the attacks in any order and mixture, each several times, and what
// is left of them, do no harm in any command of the host.
func TestProtectHostGitMixed(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	g := newHostGit(t, h)
	commands := strings.Split("status,diff,add -A,restore .,checkout -q -b other,stash -u,stash pop,fetch --all,gc -q,log --stat,worktree list,worktree prune,"+
		"submodule status,submodule update,commit -q --allow-empty -m x,-C sub status,-C sub fetch --all,-C wt restore .,-C tree status,-C split restore .,-C bare.git fetch --all,branch -a,worktree repair", ",")
	for seed := range uint64(need.Rounds("SCOPEFS_TEST_GIT_SEEDS", 1, 3)) {
		dir := fmt.Sprint("mixed", seed)
		g.prepare(h.Scope("a", dir))
		attacks := g.gitAttacks(h.Scope("a", dir))
		var files []string
		for _, attack := range attacks {
			files = append(files, attack.file)
		}
		random := rand.New(rand.NewPCG(seed, 0))
		for range 2 {
			for _, attack := range attacks { // in any order
				if random.IntN(2) == 0 { // where another one belongs
					attack.file = files[random.IntN(len(files))]
				}
				attack.inPlace = attack.inPlace != (random.IntN(4) == 0)
				cut := random.IntN(2 * len(attack.text))
				attack.text = attack.text[:min(cut, len(attack.text))]
				_ = attack.write(h.View("a", dir))
			}
		}
		assert.Empty(t, g.harm(h.Scope("a", dir), commands...), dir)
		_ = os.RemoveAll(h.Scope("a", dir))
	}
}
