package git

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

var limits = Limits{Files: 10, Each: 1000, All: 2000}

// repository is one of a test.
type repository struct {
	t   *testing.T
	dir string
	key string // with which git signs
}

func newRepository(t *testing.T, words ...string) *repository {
	t.Helper()
	need.Program(t, "git")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	r := &repository{t: t, dir: t.TempDir(), key: newKey(t)}
	r.git(append([]string{"init", "-q", "-b", "main"}, words...)...)
	return r
}

// newKey makes an SSH key.
func newKey(t *testing.T) string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	out, err := exec.Command(need.Program(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput()
	require.NoError(t, err, string(out))
	return key
}

// signers writes an allowed signers file.
func signers(t *testing.T, key string) string {
	t.Helper()
	public, err := os.ReadFile(key + ".pub")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "signers")
	require.NoError(t, os.WriteFile(file, append([]byte("ada@example.org "), public...), 0o600))
	return file
}

func (r *repository) try(words ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "gpg.format=ssh", "-c", "user.signingkey=" + r.key}, words...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r *repository) git(words ...string) string {
	r.t.Helper()
	out, err := r.try(words...)
	require.NoError(r.t, err, out)
	return out
}

func (r *repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(r.t, os.WriteFile(file, []byte(text), 0o700))
}

// commit commits a file, signed, and returns the commit.
func (r *repository) commit(name, text string) string {
	r.t.Helper()
	r.write(name, text)
	r.git("add", "-A")
	r.git("commit", "-q", "-S", "-m", name)
	return r.git("rev-parse", "HEAD")
}

func (r *repository) open(ref string) *Commit {
	r.t.Helper()
	c, err := Open(r.t.Context(), r.dir, ref)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { assert.NoError(r.t, c.Discard()); assert.NoDirExists(r.t, c.temp) })
	return c
}

// forge writes a loose object under a name, "": its own. size is what its header says.
func (r *repository) forge(id, kind, text string, size int) string {
	r.t.Helper()
	plain := fmt.Sprintf("%s %d\x00%s", kind, size, text)
	if id == "" {
		sum := sha1.Sum([]byte(plain))
		id = hex.EncodeToString(sum[:])
	}
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	_, err := w.Write([]byte(plain))
	require.NoError(r.t, err)
	require.NoError(r.t, w.Close())
	file := filepath.Join(r.dir, ".git", "objects", id[:2], id[2:])
	require.NoError(r.t, os.MkdirAll(filepath.Dir(file), 0o700))
	_ = os.Remove(file) // git's are read-only
	require.NoError(r.t, os.WriteFile(file, packed.Bytes(), 0o600))
	return id
}

// forgeTree commits a tree of these lines "MODE NAME", all of one object, as agents.d.
func (r *repository) forgeTree(blob string, lines ...string) {
	r.t.Helper()
	raw, err := hex.DecodeString(blob)
	require.NoError(r.t, err)
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "%s\x00%s", line, raw)
	}
	id, err := hex.DecodeString(r.forge("", "tree", text.String(), text.Len()))
	require.NoError(r.t, err)
	top := r.forge("", "tree", "40000 agents.d\x00"+string(id), len("40000 agents.d\x00")+len(id))
	commit := "tree " + top + "\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nx\n"
	r.write(".git/refs/heads/main", r.forge("", "commit", commit, len(commit))+"\n")
}

func TestFiles(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			r := newRepository(t, "--object-format="+format)
			r.write("agents.d/.gitkeep", "")
			r.write("x/y/c.md", "c")
			first := r.commit("agents.d/b.md", "b")
			r.commit("agents.d/b.md", "later")
			r.write("agents.d/b.md", "of the work tree")
			r.write("agents.d/d.md", "likewise")
			r.git("add", "-A")
			r.git("tag", "-a", "-m", "x", "v1", first)
			for ref, want := range map[string]string{"HEAD": "later", "main": "later", "HEAD~1": "b", first: "b", "v1": "b"} {
				files, err := r.open(ref).Files("agents.d", limits)
				require.NoError(t, err, ref)
				assert.Equal(t, []File{{"b.md", []byte(want)}}, files, ref)
			}
			files, err := r.open("HEAD").Files("x/y", limits)
			require.NoError(t, err)
			assert.Equal(t, []File{{"c.md", []byte("c")}}, files)
			for dir, want := range map[string]string{"z": "no directory", "x/y/c.md": "no directory", "..": "no path", "/x": "no path", ".": "no regular file", "x": "no regular file"} {
				_, err := r.open("HEAD").Files(dir, limits)
				assert.ErrorContains(t, err, want, dir)
			}
		})
	}
	r := newRepository(t)
	for _, ref := range []string{"HEAD", "-h", "", "nothing", "--all"} {
		_, err := Open(t.Context(), r.dir, ref)
		assert.Error(t, err, ref)
	}
	_, err := Open(t.Context(), t.TempDir(), "HEAD")
	assert.ErrorContains(t, err, "not a git repository")
}

// TestOddFiles: what no agents.d has is refused, and what is large is not read.
func TestOddFiles(t *testing.T) {
	r := newRepository(t)
	r.commit("x", "x")
	blob := r.git("hash-object", "-w", "x")
	many := make([]string, 20_000)
	for i := range many {
		many[i] = fmt.Sprintf("100644 %06d", i)
	}
	for name, one := range map[string]struct {
		lines []string
		want  string
	}{
		"a symbolic link": {[]string{"120000 b.md"}, `"b.md" in "agents.d" is no regular file`},
		"a submodule":     {[]string{"160000 b.md"}, "no regular file"},
		"a directory":     {[]string{"40000 b.md"}, "no regular file"},
		"a mode":          {[]string{"100777777777777777777 b.md"}, "no regular file"},
		"a line end":      {[]string{"120000 a\nb.md"}, `"a\nb.md"`},
		"a slash":         {[]string{"100644 ../b.md"}, ""}, // it begins with a dot
		"a slash inside":  {[]string{"100644 a/b.md"}, "git does not make"},
		"the one above":   {[]string{"100644 .."}, ""}, // likewise
		"twice":           {[]string{"100644 b.md", "100755 b.md"}, "twice"},
		"too many":        {many[:11], "11 files"},
		"far too many":    {many, "20000 files"},
		"a large tree":    {[]string{"100644 " + strings.Repeat("x", maxTree)}, "larger than"},
		"no blob":         {[]string{"100644 b.md"}, ""},
		"a tree":          {[]string{"100644"}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			r.forgeTree(blob, one.lines...)
			files, err := r.open("main").Files("agents.d", limits)
			if one.want != "" {
				assert.ErrorContains(t, err, one.want)
				return
			}
			assert.NoError(t, err)
			assert.LessOrEqual(t, len(files), 1)
		})
	}
	for name, one := range map[string]struct{ id, want string }{
		"a large one":        {r.forge("", "blob", "x", 1<<30), "larger than 1000 bytes"},
		"another kind":       {r.forge("", "tree", "", 0), "another object"},
		"missing":            {strings.Repeat("0", 39) + "1", ErrMissing.Error()},
		"another one's name": {r.forge(strings.Repeat("1", 40), "blob", "x", 1), "not what its name says"},
		"1001 bytes":         {r.forge("", "blob", strings.Repeat("x", 1001), 1001), "larger than 1000 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			r.forgeTree(one.id, "100644 b.md")
			c := r.open("main")
			_, err := c.Files("agents.d", limits)
			assert.ErrorContains(t, err, one.want)
		})
	}
	kilo := r.forge("", "blob", strings.Repeat("x", 1000), 1000)
	r.forgeTree(kilo, "100644 a", "100644 b")
	_, err := r.open("main").Files("agents.d", limits)
	require.NoError(t, err)
	r.forgeTree(kilo, "100644 a", "100644 b", "100644 c")
	_, err = r.open("main").Files("agents.d", limits)
	assert.ErrorContains(t, err, "larger than 0 bytes")

	// git waits for an object that is shorter than it says, and for a FIFO in place of one, until the context ends.
	ends := func(id string) {
		r.forgeTree(id, "100644 b.md")
		ctx, cancel := context.WithCancel(t.Context())
		c, err := Open(ctx, r.dir, "main")
		require.NoError(t, err)
		go cancel()
		_, err = c.Files("agents.d", limits)
		assert.Error(t, err)
		assert.NoError(t, c.Discard())
	}
	ends(r.forge("", "blob", "x", 999))
	file := filepath.Join(r.dir, ".git", "objects", blob[:2], blob[2:])
	require.NoError(t, os.Remove(file))
	require.NoError(t, unix.Mkfifo(file, 0o600))
	ends(blob)
}

// TestHostileRepository: nothing that a repository says of itself runs, or is put in place of an object.
func TestHostileRepository(t *testing.T) {
	r := newRepository(t)
	commit := r.commit("agents.d/b.md", "b")
	blob := r.git("rev-parse", "HEAD:agents.d/b.md")
	marker := filepath.Join(t.TempDir(), "marker")
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho \"$0 $*\" >>"+marker+"\n"), 0o700))
	for _, key := range []string{
		"core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy", "core.alternateRefsCommand", "pager.rev-parse", "pager.cat-file",
		"gpg.program", "gpg.openpgp.program", "gpg.ssh.program", "gpg.x509.program", "gpg.ssh.defaultKeyCommand", "credential.helper", "diff.external", "diff.x.textconv",
		"filter.x.smudge", "filter.x.clean", "filter.x.process", "uploadpack.packObjectsHook", "remote.origin.uploadpack", "alias.cat-file", "alias.rev-parse",
	} {
		r.git("config", key, program)
	}
	r.git("config", "remote.origin.url", "ext::"+program)
	r.git("config", "remote.origin.promisor", "true")
	r.git("config", "protocol.allow", "always")
	r.git("config", "protocol.ext.allow", "always")
	r.git("config", "gpg.minTrustLevel", "undefined")
	r.git("config", "gpg.ssh.allowedSignersFile", signers(t, r.key)) // what the repository says of signers does not count
	r.git("config", "core.repositoryFormatVersion", "1")
	r.git("config", "extensions.partialClone", "origin")
	r.git("config", "core.hooksPath", filepath.Dir(program))
	r.write(".git/info/attributes", "* filter=x diff=x text eol=crlf working-tree-encoding=UTF-16\n")
	r.write(".git/info/grafts", commit+"\n")
	r.write(".git/objects/info/alternates", "/nowhere\n"+filepath.Join(r.dir, ".git")+"\n")
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change", "fsmonitor-watchman"} {
		require.NoError(t, os.Link(program, filepath.Join(filepath.Dir(program), hook)))
	}
	evil := r.forge("", "blob", "evil", 4)
	r.write(".git/refs/replace/"+blob, evil+"\n")
	r.git("config", "core.worktree", "/")
	_ = os.Remove(marker) // of the commands above

	c := r.open("HEAD")
	assert.Equal(t, commit, c.ID)
	files, err := c.Files("agents.d", limits)
	require.NoError(t, err)
	assert.Equal(t, []File{{"b.md", []byte("b")}}, files)
	assert.Error(t, c.Verify(t.Context(), ""))
	assert.NoError(t, c.Verify(t.Context(), signers(t, r.key)))
	_, err = c.Follows(strings.Repeat("1", 40))
	assert.NoError(t, err)
	_, err = Open(t.Context(), r.dir, strings.Repeat("1", 40)) // an object that a partial clone would fetch
	assert.Error(t, err)
	require.NoError(t, os.Remove(filepath.Join(r.dir, ".git", "objects", blob[:2], blob[2:])))
	_, err = r.open("HEAD").Files("agents.d", limits)
	assert.ErrorIs(t, err, ErrMissing)
	ran, _ := os.ReadFile(marker)
	assert.Empty(t, string(ran))

	// A file .git that names another repository leads there, as for git.
	other := &repository{t: t, dir: t.TempDir()}
	other.write(".git", "gitdir: "+filepath.Join(r.dir, ".git")+"\n")
	assert.Equal(t, commit, other.open("HEAD").ID)
	ran, _ = os.ReadFile(marker)
	assert.Empty(t, string(ran))
}

func TestVerify(t *testing.T) {
	r := newRepository(t)
	signed := r.commit("agents.d/b.md", "b")
	own, others := signers(t, r.key), signers(t, newKey(t))
	c := r.open("HEAD")
	assert.NoError(t, c.Verify(t.Context(), own))
	assert.ErrorContains(t, c.Verify(t.Context(), others), "no signature that counts")
	assert.ErrorContains(t, c.Verify(t.Context(), filepath.Join(t.TempDir(), "none")), "no signature that counts")
	assert.Error(t, c.Verify(t.Context(), ""), "the user has named no signers")
	config := filepath.Join(os.Getenv("HOME"), ".gitconfig")
	require.NoError(t, os.WriteFile(config, []byte("[gpg \"ssh\"]\nallowedSignersFile = "+own+"\n"), 0o600))
	assert.NoError(t, c.Verify(t.Context(), ""))
	assert.Error(t, c.Verify(t.Context(), others), "those of the file alone count")

	// The signature of another text, and another text under the name of the commit, of a tree and of a file.
	text := r.git("cat-file", "commit", signed) + "\n"
	changed := strings.Replace(text, "a@example.org", "b@example.org", 1)
	evil := r.forge("", "commit", changed, len(changed))
	assert.Error(t, r.open(evil).Verify(t.Context(), own))
	r.git("commit", "-q", "--allow-empty", "-m", "unsigned")
	assert.ErrorContains(t, r.open("HEAD").Verify(t.Context(), own), "no signature that counts")
	unsigned := r.git("rev-parse", "HEAD")
	r.forge(unsigned, "commit", text, len(text))
	_, err := Open(t.Context(), r.dir, unsigned)
	assert.Error(t, err)
	tree, blob := r.git("rev-parse", signed+":agents.d"), r.git("rev-parse", signed+":agents.d/b.md")
	r.forge(blob, "blob", "evil", 4)
	_, err = r.open(signed).Files("agents.d", limits)
	assert.ErrorContains(t, err, "not what its name says")
	r.forge(tree, "tree", "", 0)
	_, err = r.open(signed).Files("agents.d", limits)
	assert.ErrorContains(t, err, "not what its name says")
}

// TestVerifyOpenPGP: a key in the user's keyring counts when it is trusted, and no longer with a file of signers.
func TestVerifyOpenPGP(t *testing.T) {
	gpg := need.Program(t, "gpg")
	r := newRepository(t)
	home, err := os.MkdirTemp("", "gpg") // short: gpg-agent has a socket there
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	t.Setenv("GNUPGHOME", home)
	run := func(in string, words ...string) string {
		t.Helper()
		cmd := exec.Command(gpg, append([]string{"--batch", "--quiet", "--passphrase", ""}, words...)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	run("", "--quick-generate-key", "ada@example.org", "ed25519", "sign", "never")
	_, rest, _ := strings.Cut(run("", "--with-colons", "--list-keys"), "\nfpr:")
	print := strings.Trim(strings.SplitN(rest, "\n", 2)[0], ":")
	r.write("x", "x")
	r.git("add", "-A")
	r.git("-c", "gpg.format=openpgp", "-c", "user.signingkey="+print, "commit", "-q", "-S", "-m", "x")
	c := r.open("HEAD")
	assert.NoError(t, c.Verify(t.Context(), ""))
	assert.ErrorContains(t, c.Verify(t.Context(), signers(t, r.key)), "no signature that counts")
	run(print+":2:\n", "--import-ownertrust")
	assert.Error(t, c.Verify(t.Context(), ""), "a key of unknown owner")
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("HOME"), ".gitconfig"), []byte("[gpg]\nminTrustLevel = undefined\n"), 0o600))
	assert.NoError(t, c.Verify(t.Context(), ""))
}

// TestOwner: a repository of another user is read only if the user's own configuration says so.
func TestOwner(t *testing.T) {
	need.Root(t, "it makes a file of another user")
	r := newRepository(t)
	r.commit("x", "x")
	r.git("config", "safe.directory", "*")
	require.NoError(t, os.Chown(r.dir, 4321, 4321))
	require.NoError(t, os.Chown(filepath.Join(r.dir, ".git"), 4321, 4321))
	_, err := Open(t.Context(), r.dir, "HEAD")
	assert.ErrorIs(t, err, ErrOwner)
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("HOME"), ".gitconfig"), []byte("[safe]\ndirectory = "+r.dir+"\n"), 0o600))
	assert.Error(t, r.open("HEAD").Verify(t.Context(), signers(t, newKey(t))))
	assert.NoError(t, r.open("HEAD").Verify(t.Context(), signers(t, r.key)))
}

func TestFollows(t *testing.T) {
	r := newRepository(t)
	first := r.commit("x", "1")
	second := r.commit("x", "2")
	r.git("checkout", "-q", "-b", "side", first)
	side := r.commit("y", "1")
	r.git("merge", "-q", "-m", "m", "main")
	merge := r.git("rev-parse", "HEAD")
	for pair, want := range map[[2]string]bool{
		{first, first}: true, {second, first}: true, {merge, first}: true, {merge, second}: true, {merge, side}: true,
		{first, second}: false, {side, second}: false, {second, merge}: false, {merge, strings.Repeat("1", 40)}: false,
	} {
		got, err := r.open(pair[0]).Follows(pair[1])
		require.NoError(t, err)
		assert.Equal(t, want, got, pair)
	}
	// A graph that lies about parents, and a parent that is another commit, do not count.
	shallow := &repository{t: t, dir: filepath.Join(t.TempDir(), "clone")}
	r.git("clone", "-q", "--depth=1", "--branch=side", "file://"+r.dir, shallow.dir)
	ok, err := shallow.open("HEAD").Follows(merge)
	require.NoError(t, err)
	assert.True(t, ok)
	_, err = shallow.open("HEAD").Follows(first)
	assert.ErrorIs(t, err, ErrMissing)
	text := r.git("cat-file", "commit", merge) + "\n"
	r.forge(second, "commit", text, len(text))
	_, err = r.open(merge).Follows(strings.Repeat("1", 40))
	assert.ErrorContains(t, err, "not what its name says")
}
