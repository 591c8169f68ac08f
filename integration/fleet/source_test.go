package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/need"
)

// A repository has definitions, and a key that signs its commits.
type repository struct {
	t                 *testing.T
	dir, key, signers string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, dir: filepath.Join(t.TempDir(), "definitions"), key: filepath.Join(t.TempDir(), "key"), signers: filepath.Join(t.TempDir(), "signers")}
	out, err := exec.Command(need.Program(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", r.key).CombinedOutput()
	require.NoError(t, err, string(out))
	public, err := os.ReadFile(r.key + ".pub")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.signers, append([]byte("ada@example.org "), public...), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "agents.d"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(r.dir, "other"), 0o700))
	for _, dir := range []string{"agents.d", "other"} {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, dir, ".gitkeep"), nil, 0o600))
	}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *repository) git(words ...string) string {
	r.t.Helper()
	cmd := exec.Command(need.Program(r.t, "git"), append([]string{
		"-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "gpg.format=ssh", "-c", "user.signingkey=" + r.key,
	}, words...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, string(out))
	return strings.TrimSpace(string(out))
}

// commit commits the definitions of agents, "": none, and returns the commit.
func (r *repository) commit(sign string, fronts map[string]string) string {
	r.t.Helper()
	for id, front := range fronts {
		file := filepath.Join(r.dir, "agents.d", id+".md")
		if front == "" {
			require.NoError(r.t, os.Remove(file))
			continue
		}
		require.NoError(r.t, os.WriteFile(file, []byte("---\nname: "+id+"\ndescription: test\n"+front+"\n---\nprompt\n"), 0o600))
	}
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", sign, "-m", "x")
	return r.git("rev-parse", "HEAD")
}

// TestFleetSource: the definitions of a fleet follow the signed commits of a repository. What others have put stays.
func TestFleetSource(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	ada, bob := newOperator(t, h, "ada"), newOperator(t, h, "bob")
	defining(h, n, "one", ada)
	const direct = "view: {changes: direct}"
	for _, id := range []string{"b", "c", "d", "hand"} {
		harness.Plant(t, h.Scope(id), "x=1")
	}
	h.Start()
	repo := newRepository(t)
	flags := func(more ...string) []string {
		return append([]string{"fleet", "definitions", "put", "--git", repo.dir, "--key", ada.file, "--signers", repo.signers}, more...)
	}
	put := func(want string, more ...string) {
		t.Helper()
		assert.Regexp(t, "^"+want+"$", h.Must(flags(more...)...))
	}
	refused := func(want string, more ...string) {
		t.Helper()
		out, errs, code := h.Try(flags(more...)...)
		assert.Equal(t, 1, code, out)
		assert.Contains(t, errs, want)
		assert.NotContains(t, out, "published")
	}
	takes := func(times int) {
		t.Helper()
		h.Eventually("the node takes it", func() bool { return outcomes(h, fleet.DefinitionTaken, "") == times })
	}
	h.Must("fleet", "definitions", "put", definition(t, "hand", direct), "--key", ada.file)
	first := repo.commit("-S", map[string]string{"b": direct, "c": direct, "d": "view: {changes: direct}\nenv: {X: '${OF_THE_NODE}'}"})
	put(`would be published b\nwould be published c\nwould be published d\nunchanged 0\n`, "--dry-run")
	put(`published b \S+Z\npublished c \S+Z\npublished d \S+Z\nunchanged 0\n`)
	h.Eventually("the node has the agents", func() bool { return mounts(h, "b") && mounts(h, "c") && mounts(h, "hand") })
	assert.NotContains(t, h.Must("fleet", "definitions"), "source", "the source is no definition")
	put(`unchanged 3\n`)

	second := repo.commit("-S", map[string]string{"b": "view: {changes: direct, paths: {'**': read}}", "c": ""})
	put(`published b \S+Z\nremoved c \S+Z\nunchanged 1\n`)
	takes(5) // hand, b, c, b, c; d names a variable that the node lacks
	h.Eventually("the agent is removed", func() bool { _, _, code := h.Try("run", "c", "--", "true"); return code != 0 })
	assert.True(t, mounts(h, "b"))
	assert.True(t, mounts(h, "hand"), "what others have put stays")
	refused("not in the history", "--ref", first)

	// A commit without a signature that counts, or with a definition that is none, publishes nothing.
	third := repo.commit("--no-gpg-sign", map[string]string{"b": direct})
	refused("no signature that counts")
	refused("no signature that counts", "--signers", os.DevNull)
	put(`would be published b\nunchanged 1\n`, "--unsigned", "--dry-run")
	repo.commit("-S", map[string]string{"d": "view: {paths: {'**': everything}}"})
	refused("agents.d/d.md")
	repo.commit("-S", map[string]string{"d": "", "hand": "view: {paths: {'**': read}}"})
	refused("somebody else has put a definition")
	repo.commit("-S", map[string]string{"hand": ""})

	// What is equal, or was changed back, gets no version; an older commit does not come in place of a later one for that.
	put(`published b \S+Z\nremoved d \S+Z\nunchanged 0\n`)
	repo.commit("-S", nil)
	put(`unchanged 1\n`)
	refused("not in the history", "--ref", third, "--unsigned")
	refused("not in the history", "--ref", second)
	put(`published b \S+Z\npublished d \S+Z\nunchanged 0\n`, "--ref", second, "--force")
	put(`published b \S+Z\nremoved d \S+Z\nunchanged 0\n`)

	// What somebody else has put in place of it stays, also when the commits have it no more.
	h.Must("fleet", "definitions", "put", definition(t, "b", "view: {changes: direct, paths: {'x': read}}"), "--key", ada.file)
	refused("b: somebody else has put")
	repo.commit("-S", map[string]string{"b": ""})
	put(`unchanged 0\n`)
	assert.True(t, mounts(h, "b"))

	// A source that another key has signed, or of another directory, is not followed.
	refused("of a repository", "--path", "other")
	put(`unchanged 0\n`, "--path", "other", "--source", "other")
	put(`unchanged 0\n`, "--key", bob.file) // ada is in the trust of this scopefs.yaml
	join(h, n, "one", bob)
	refused("no trusted key", "--key", bob.file)
	put(`unchanged 0\n`)
	_, errs, code := h.Try(flags(definition(t, "b", direct))...)
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "give files, or --git")
	_, _, code = h.Try("fleet", "definitions", "put", "--unsigned", definition(t, "b", direct), "--key", ada.file)
	assert.Equal(t, 2, code)
}

// TestFleetSourcesAtOnce: of two commits that are put at once, the older one does not come last unless a command says so.
func TestFleetSourcesAtOnce(t *testing.T) {
	n := newServer(t)
	h := newNode(t, n, "one")
	h.Must("fleet", "init")
	ada := newOperator(t, h, "ada")
	repo := newRepository(t)
	try := func(more ...string) (string, int) {
		out, errs, code := h.Try(append([]string{"fleet", "definitions", "put", "--git", repo.dir, "--key", ada.file, "--unsigned"}, more...)...)
		return out + errs, code
	}
	const one, two = "view: {changes: direct}", "view: {changes: direct, paths: {'**': read}}"
	repo.commit("--no-gpg-sign", map[string]string{"b": one, "c": one})
	out, code := try()
	require.Zero(t, code, out)
	for range 3 {
		older := repo.commit("--no-gpg-sign", map[string]string{"b": two, "c": two})
		repo.commit("--no-gpg-sign", map[string]string{"b": one, "c": one})
		codes := make(chan int, 2)
		for _, ref := range []string{older, "HEAD"} {
			go func() {
				_, code := try("--ref", ref)
				codes <- code
			}()
		}
		failed := <-codes + <-codes
		out, code := try("--dry-run")
		require.Zero(t, code, out)
		assert.True(t, failed > 0 || out == "unchanged 2\n", "both say that they have published: %s", out)
		out, code = try()
		require.Zero(t, code, out)
	}
}
