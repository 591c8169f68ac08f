package answers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/effect"
)

// marks returns the marks of a path in the lists.
func (a answer) marks(path string) []string {
	for _, o := range a.effects.Listed() {
		if o.Path == path {
			return append([]string{}, o.Marks...)
		}
	}
	return nil
}

// kept is a host with an agent a whose changes are kept, and a client of it.
func kept(t *testing.T, more string, entries ...string) (*harness.Host, *harness.User) {
	t.Helper()
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: kept" + more + "}"})
	harness.Plant(t, h.Scope("a"), entries...)
	return h, h.Connect("a")
}

const nothing = "nothing changed in /workspace; HOME and /tmp are not watched\n"

// TestNothing: an answer says that nothing changed, as the log does. What the view does not watch is named.
func TestNothing(t *testing.T) {
	h, u := kept(t, ", record: denials", "f=1", "d/")
	for _, command := range []string{"true", "cat f", "ls", "echo x >/tmp/x; echo x >$HOME/x", "(echo x >f) 2>/dev/null; true; : >/tmp/f"} {
		a := bash(t, u, command)
		if strings.Contains(command, "echo x >f") {
			assert.Equal(t, []string{"f"}, paths(a.effects.Changed), "record: denials changes nothing")
			continue
		}
		assert.Equal(t, effect.Effects{Nothing: true}, a.effects, command)
		assert.Equal(t, nothing, a.told, command)
	}
	calls := h.Calls("a", "bash")
	changed := map[int]int{}
	for _, e := range calls {
		if e.Outcome != audit.OutcomeBegin {
			require.NotNil(t, e.Changed)
			changed[*e.Changed]++
		}
	}
	assert.Equal(t, map[int]int{0: 4, 1: 1}, changed)
	_, stderr, _ := h.Try("run", "-T", "a", "--", "true")
	assert.Equal(t, "scopefs: "+nothing, stderr)
}

// TestRunSays: -q prints nothing, and --json a line for programs.
func TestRunSays(t *testing.T) {
	h, _ := kept(t, "", "f")
	_, stderr, _ := h.Try("run", "-q", "-T", "a", "--", "touch", "f")
	assert.Empty(t, stderr)
	_, stderr, _ = h.Try("run", "--json", "-T", "a", "--", "rm", "f")
	var said struct {
		Effects effect.Effects `json:"effects"`
		Took    int64          `json:"duration_ms"`
	}
	require.NoError(t, json.Unmarshal([]byte(stderr), &said), stderr)
	assert.Equal(t, []string{"f"}, paths(said.Effects.Removed))
	assert.Equal(t, map[string]int{"rm": 1}, said.Effects.By)
	assert.NotZero(t, said.Took)
	_, stderr, _ = h.Try("run", "-T", "a", "--", "sh", "-c", "setsid sh -c 'echo late >late' & while ! [ -s late ]; do :; done")
	assert.Contains(t, stderr, "1 created", "what a process in the background did counts")
}

// TestModes: a change of a mode alone, and the rename of a directory.
func TestModes(t *testing.T) {
	_, u := kept(t, "", "run.sh", "d/one", "d/two")
	a := bash(t, u, "chmod 755 run.sh; mv d e")
	assert.Equal(t, []effect.Object{{Path: "run.sh", Mode: "0644 > 0755", Marks: []string{effect.Executable}}}, a.effects.Modes)
	assert.Equal(t, []effect.Object{{Path: "e/", From: "d"}}, a.effects.Moved)
	assert.Contains(t, a.told, "moved d -> e/\n")
}

// TestSealed: what a rule refused is in the answer, with the rule.
func TestSealed(t *testing.T) {
	h, u := kept(t, "", ".env=SECRET=1\n", "config.json={}")
	h.Define("a", "view: {changes: kept, paths: {\".env\": seal}}")
	h.Must("reload")
	a := bash(t, u, "echo reset >config.json; echo MODE=default >.env 2>/dev/null; rm -f .env 2>/dev/null; true")
	assert.Equal(t, []string{"config.json"}, paths(a.effects.Changed))
	require.Len(t, a.effects.Refused, 1)
	assert.Equal(t, ".env", a.effects.Refused[0].Path)
	assert.Contains(t, a.effects.Refused[0].Rule, "seal")
	assert.Contains(t, a.told, "refused ")
	assert.Equal(t, "SECRET=1\n", harness.ReadAll(t, h.Scope("a", ".env")))
}

// TestHookPrograms: what `husky` and `git lfs install` do to a repository is refused, each with a line that says where it works.
func TestHookPrograms(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "protect: [\"*\"]\nview: {changes: kept}"})
	require.NoError(t, exec.Command("git", "init", "-q", h.Scope("a")).Run())
	h.Start()
	for install, refused := range map[string]string{
		"git config core.hooksPath .husky/_":               "rename .git/config: protect git-config: sets core.hookspath",
		"mkdir .husky":                                     "mkdir .husky: protect git-hooks",
		"git config filter.lfs.smudge 'git-lfs smudge %f'": "rename .git/config: protect git-config: sets filter.lfs.smudge",
		"echo 'git lfs pre-push' >.git/hooks/pre-push":     "create .git/hooks/pre-push: protect git-hooks",
	} {
		_, stderr, code := h.Try("run", "-T", "a", "--", "sh", "-c", install)
		assert.NotZero(t, code)
		assert.Contains(t, stderr, "scopefs: refused "+refused+": do it on the host\n", install)
	}
	h.Define("a", "view: {changes: kept, paths: {x: read}}")
	h.Must("reload")
	_, stderr, _ := h.Try("run", "-T", "a", "--", "mkdir", "x")
	assert.Contains(t, stderr, "scopefs: refused mkdir x: x: read\n", "no rule of protect")
}

// TestBackground: a file that a process in the background has open is marked, and the answers about the process list what it changes
// since, once.
func TestBackground(t *testing.T) {
	h, u := kept(t, "", "log=old\n")
	a := bash(t, u, "(exec 3>>log; while [ -e go ] || ! [ -e stop ]; do sleep 0.01; done; rm go2; echo end >&3) >/dev/null 2>&1 & until [ -e /proc/$!/fd/3 ]; do :; done; touch go2")
	assert.Equal(t, []string{effect.Open}, a.marks("log"))
	harness.Plant(t, h.Scope("a"), "stop")
	h.Eventually("the process ends", func() bool {
		_, err := os.Stat(h.Scope("a", "go2"))
		return err != nil
	})
	a = call(t, u, "bash", map[string]any{"command": "echo 1 >one; until [ -e stop2 ]; do sleep 0.01; done; echo 2 >two", "background": true})
	id := regexp.MustCompile(`in the background as (p\d+)`).FindStringSubmatch(a.text)[1]
	created := paths(a.effects.Created)
	h.Eventually("the first file", func() bool {
		created = append(created, paths(call(t, u, "process_read", map[string]any{"id": id}).effects.Created)...)
		return len(created) > 0
	})
	assert.Equal(t, []string{"one"}, created)
	a = call(t, u, "process_read", map[string]any{"id": id})
	assert.True(t, a.effects.Nothing, "once")
	harness.Plant(t, h.Scope("a"), "stop2")
	var last answer
	h.Eventually("the second file", func() bool {
		last = call(t, u, "process_read", map[string]any{"id": id})
		return !last.effects.Nothing
	})
	assert.Equal(t, []string{"two"}, paths(last.effects.Created))
	assert.Contains(t, last.told, "created two")
}

// TestMapped: a store through a shared mapping is a change of the file, also when its descriptor is closed.
func TestMapped(t *testing.T) {
	h, u := kept(t, "", "data=0000")
	plantTool(t, h.Scope("a"))
	a := bash(t, u, harness.RoleEnv+"=mapped ./tool data")
	assert.Equal(t, []string{"data"}, paths(a.effects.Changed))
	assert.Equal(t, "mapd", harness.ReadAll(t, h.Scope("a", "data")))
}

// TestDirect: where nothing is kept the answer says so, as a text once in a session. A person who runs a command has written it.
func TestDirect(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	u := h.Connect("a")
	a := bash(t, u, "touch f")
	assert.Contains(t, a.told, "what changed is not known")
	assert.False(t, a.effects.Nothing)
	a = bash(t, u, "touch g")
	assert.NotContains(t, a.text, "not known")
	assert.Contains(t, a.effects.Unknown, "no history")
	_, stderr, _ := h.Try("run", "-T", "a", "--", "touch", "f")
	assert.Empty(t, stderr)
}

// TestMeanwhile: what another session or the host changes at the same time is no effect of the call, and a file that both changed is
// marked.
func TestMeanwhile(t *testing.T) {
	h, u := kept(t, "", "shared=1\n", "mine=1\n")
	other := h.Connect("a")
	done := make(chan answer)
	go func() {
		done <- bash(t, u, "echo 2 >mine; echo 2 >shared; echo 2 >hosts; touch ready; until [ -e go ]; do sleep 0.01; done")
	}()
	h.Eventually("the call is under way", func() bool { _, err := os.Stat(h.Scope("a", "ready")); return err == nil })
	second := bash(t, other, "echo theirs >shared; echo theirs >theirs; rm -f nothing")
	harness.Plant(t, h.Scope("a"), "hosts=host\n", "alien=host\n", "go=")
	a := <-done
	assert.ElementsMatch(t, []string{"hosts", "ready"}, paths(a.effects.Created))
	assert.ElementsMatch(t, []string{"mine", "shared"}, paths(a.effects.Changed))
	assert.Empty(t, a.marks("mine"))
	assert.Equal(t, []string{effect.Others}, a.marks("shared"))
	assert.Equal(t, []string{effect.Others}, a.marks("hosts"))
	assert.Contains(t, a.told, effect.Others)
	assert.ElementsMatch(t, []string{"theirs"}, paths(second.effects.Created))
	assert.ElementsMatch(t, []string{"shared"}, paths(second.effects.Changed))
}

// TestMarks: what the host may execute or read as configuration, and what was not kept.
func TestMarks(t *testing.T) {
	_, u := kept(t, "}\nhistory: {exclude: [\"*.big\"]", "a.big", "Makefile=all:\n")
	a := bash(t, u, "echo x >>Makefile; echo '{}' >package.json; mkdir .tool; echo 1 >.tool/conf; d=li; mkdir ${d}b; echo 1 >${d}b/a; echo 1 >${d}b/b; install -m 755 /dev/null ${d}b/run; rm a.big")
	assert.Equal(t, []string{effect.Read}, a.marks("Makefile"))
	assert.Equal(t, []string{effect.Read}, a.marks("package.json"))
	assert.Equal(t, []string{effect.Read}, a.marks(".tool/"))
	assert.Equal(t, []string{effect.Executable}, a.marks("lib/run"))
	assert.Equal(t, []string{effect.NotKept + "excluded"}, a.marks("a.big"))
	assert.Contains(t, a.told, "lib/ (3 files)")
	assert.Contains(t, a.told, "removed a.big (not kept: excluded)\n")
}

// TestMany: no more than 20 lines, and how many are left out.
func TestMany(t *testing.T) {
	_, u := kept(t, "")
	a := bash(t, u, "for i in $(seq 300); do echo $i >file-with-a-long-name-to-fill-its-line-and-the-lines-of-the-answer-$i.txt; done")
	assert.Equal(t, 300, a.effects.Counts.Created)
	assert.Len(t, a.effects.Created, effect.Max)
	assert.Equal(t, 300-effect.Max, a.effects.LeftOut)
	assert.LessOrEqual(t, strings.Count(a.told, "\n"), 20)
	assert.Regexp(t, fmt.Sprintf(`\nand \d+ more: changes call=%s \(to take it back: undo call=%[1]s\)\n$`, undoes(t, a.told)), a.told)
}

// TestNamed: what the arguments name is not said again, but a removal is.
func TestNamed(t *testing.T) {
	_, u := kept(t, "", "f=1", "g=1")
	a := call(t, u, "write_file", map[string]any{"path": "new", "content": "x"})
	assert.Equal(t, []string{"new"}, paths(a.effects.Created))
	assert.NotContains(t, a.told, "undo")
	a = call(t, u, "delete_file", map[string]any{"path": "f"})
	assert.Contains(t, a.told, "removed f (to take it back: undo call=")
	a = bash(t, u, "echo 2 >g; cp g h1")
	assert.NotContains(t, a.text, "h1")
	assert.Equal(t, []string{"g"}, paths(a.effects.Changed))
	assert.Equal(t, []string{"h1"}, paths(a.effects.Created))
}
