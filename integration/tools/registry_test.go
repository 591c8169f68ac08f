package tools

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// registry is a small registry of npm, PyPI and Go modules at their real names, with one
// package in each, and a git server.
type registry struct {
	files map[string][]byte // by host and path
	git   http.Handler

	mu       sync.Mutex
	requests []string
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Host == "git.test" {
		r.git.ServeHTTP(w, req)
		return
	}
	at := req.Host + req.URL.Path
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+at)
	r.mu.Unlock()
	body, ok := r.files[at]
	if !ok {
		http.NotFound(w, req)
		return
	}
	switch { // as the real ones say
	case req.Host == "registry.npmjs.org":
		w.Header().Set("Cache-Control", "public, max-age=300")
	case req.Host == "files.pythonhosted.org":
		w.Header().Set("Cache-Control", "max-age=365000000, immutable, public")
	case strings.HasSuffix(at, "/"):
		w.Header().Set("Content-Type", "text/html")
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(body)))
	http.ServeContent(w, req, filepath.Base(at), time.Time{}, bytes.NewReader(body))
}

// taken returns the requests since the last call.
func (r *registry) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.requests
	r.requests = nil
	return list
}

func zipped(t *testing.T, files map[string]string) []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, text := range files {
		w, err := z.Create(name)
		require.NoError(t, err)
		_, err = io.WriteString(w, text)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return out.Bytes()
}

// packed returns the package greet, of npm.
func packed(t *testing.T) []byte {
	var ball bytes.Buffer
	gz := gzip.NewWriter(&ball)
	archive := tar.NewWriter(gz)
	for name, text := range map[string]string{"package.json": `{"name": "greet", "version": "1.0.0"}`, "index.js": `module.exports = "hello of npm"`} {
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text))}))
		_, err := io.WriteString(archive, text)
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, gz.Close())
	return ball.Bytes()
}

// integrity returns what npm writes of a tarball into package-lock.json.
func integrity(ball []byte) string {
	sum := sha512.Sum512(ball)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// newRegistry returns a registry whose packages say "hello".
func newRegistry(t *testing.T) *registry {
	ball := packed(t)
	packument, err := json.Marshal(args{"name": "greet", "dist-tags": args{"latest": "1.0.0"}, "versions": args{"1.0.0": args{"name": "greet", "version": "1.0.0",
		"dist": args{"tarball": "https://registry.npmjs.org/greet/-/greet-1.0.0.tgz", "integrity": integrity(ball)}}}})
	require.NoError(t, err)
	wheel := zipped(t, map[string]string{
		"greet.py":                     "word = 'hello of pip'\n",
		"greet-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n",
		"greet-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"greet-1.0.dist-info/RECORD":   "greet.py,,\ngreet-1.0.dist-info/METADATA,,\ngreet-1.0.dist-info/WHEEL,,\ngreet-1.0.dist-info/RECORD,,\n",
	})
	const module = "proxy.golang.org/example.test/greet/@v/"
	return &registry{files: map[string][]byte{
		"registry.npmjs.org/greet":                            packument,
		"registry.npmjs.org/greet/-/greet-1.0.0.tgz":          ball,
		"pypi.org/simple/greet/":                              fmt.Appendf(nil, `<a href="https://files.pythonhosted.org/x/greet-1.0-py3-none-any.whl#sha256=%x">greet-1.0-py3-none-any.whl</a>`, sha256.Sum256(wheel)),
		"files.pythonhosted.org/x/greet-1.0-py3-none-any.whl": wheel,
		module + "v1.0.0.info":                                []byte(`{"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}`),
		module + "v1.0.0.mod":                                 []byte("module example.test/greet\n"),
		module + "v1.0.0.zip":                                 zipped(t, map[string]string{"example.test/greet@v1.0.0/go.mod": "module example.test/greet\n", "example.test/greet@v1.0.0/greet.go": "package greet\n"}),
	}}
}

// gitServer serves a repository over HTTP as git's own program does: git-http-backend(1).
func gitServer(t *testing.T) http.Handler {
	dir := t.TempDir()
	run := func(words ...string) string {
		out, err := exec.Command("git", words...).CombinedOutput()
		require.NoError(t, err, "%v: %s", words, out)
		return strings.TrimSpace(string(out))
	}
	run("init", "-q", "-b", "main", dir+"/x")
	run("-C", dir+"/x", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first commit")
	run("clone", "-q", "--bare", dir+"/x", dir+"/x.git")
	return &cgi.Handler{Path: run("--exec-path") + "/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}, Stderr: io.Discard}
}

// TestClientsRegistry: package managers install from their registries, which presets
// name; what they keep in HOME serves the agent's next sandbox and nobody else's; other
// programs reach the hosts with their own ways of finding a proxy.
func TestClientsRegistry(t *testing.T) {
	need.Once(t)
	needClients(t)
	need.Program(t, "curl")
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	if _, err := os.Stat("/usr/lib/python3/dist-packages/pip"); err != nil {
		need.Skip(t, "no pip: install python3-pip: ", err)
	}
	r := newRegistry(t)
	r.git = gitServer(t)
	at, ca := secureServer(t, r.ServeHTTP, "registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "proxy.golang.org", "git.test")
	var own []string
	for _, host := range []string{"registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "proxy.golang.org"} {
		own = append(own, fmt.Sprintf("{host: %s, address: '%s', ca: %q, methods: [GET, HEAD]}", host, at, ca))
	}
	own = append(own, fmt.Sprintf("{host: git.test, address: '%s', ca: %q, methods: [GET, POST]}", at, ca))
	front := "network: {presets: [npm, pypi, go], allow: [" + strings.Join(own, ", ") + "]}\nenv: {GONOSUMDB: example.test/*, GOTOOLCHAIN: local, NO_COLOR: '1'}\n"
	h := harness.LayOut(t, map[string]string{"a": front + "user: '1000'", "b": front + "user: '1001'", "brief": front + "sandbox: {home: temporary}"})
	for id, uid := range map[string]int{"a": 1000, "b": 1001, "brief": 0} {
		require.NoError(t, os.Chown(h.Scope(id), uid, uid))
	}
	expose := []string{clients + "/node", clients + "/npm"}
	path := clients + "/node/bin:/usr/bin:/bin"
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	root := strings.TrimSpace(string(goroot))
	if path = root + "/bin:" + path; !strings.HasPrefix(root, "/usr/") {
		expose = append(expose, root)
	}
	h.Put("scopefs.yaml", fmt.Sprintf("sandbox: {caches: [npm, pip, go, cargo], expose: [%s], env: {PATH: '%s'}}\n", strings.Join(expose, ", "), path))
	h.Start()
	sh := func(id, script string) string {
		began := time.Now()
		out, errs, code := h.Try("run", id, "--", "bash", "-ec", script)
		assert.Zero(t, code, "%s: %s: %s%s", id, script, out, errs)
		t.Logf("%s: %.60s: %.1f s", id, script, time.Since(began).Seconds())
		return out
	}
	npm := "node " + clients + "/npm/bin/npm-cli.js --no-update-notifier --loglevel=error"
	for name, c := range map[string]struct {
		install, use, hello string
		again               []string // the requests of a second install
	}{
		"npm": {"rm -rf n; mkdir n; cd n; " + npm + " install greet", "cd n; node -p 'require(\"greet\")'", "hello of npm\n", nil},
		"pip": {"rm -rf p; /usr/bin/python3 -m pip -q --disable-pip-version-check install --no-deps --target p greet", "cd p; /usr/bin/python3 -c 'import greet; print(greet.word)'", "hello of pip\n",
			[]string{"GET pypi.org/simple/greet/"}}, // pip asks the index each time
		"go": {"rm -rf g; mkdir g; cd g; printf 'module m\\n\\ngo 1.21\\n\\nrequire example.test/greet v1.0.0\\n' >go.mod; go mod download example.test/greet",
			"cd g; go list -m -f '{{.Dir}}' example.test/greet", "/home/agent/go/pkg/mod/example.test/greet@v1.0.0\n", nil},
	} {
		sh("a", c.install)
		first := r.taken()
		assert.NotEmpty(t, first, name)
		assert.Equal(t, c.hello, sh("a", c.use), name)
		sh("a", c.install)
		assert.Equal(t, c.again, r.taken(), "%s: the second time, in another sandbox", name)
		assert.Equal(t, c.hello, sh("a", c.use), name)
		sh("b", c.install)
		assert.ElementsMatch(t, first, r.taken(), "%s: a neighbour has nothing of it", name)
		sh("brief", c.install)
		assert.ElementsMatch(t, first, r.taken(), name)
		sh("brief", c.install)
		assert.Equal(t, c.again, r.taken(), "%s: the cache outlives a temporary HOME", name)
	}

	for _, script := range []string{
		"git clone -q https://git.test/x.git c1 && git -C c1 log --format=%s | grep 'first commit'",
		"git -c http.proxy=socks5h://127.0.0.1:3128 clone -q https://git.test/x.git c2",
		"curl -sSf https://registry.npmjs.org/greet | grep -q tarball",
		"curl -sSf --socks5-hostname 127.0.0.1:3128 https://registry.npmjs.org/greet | grep -q tarball",
		`/usr/bin/python3 -c 'import urllib.request as u; assert b"tarball" in u.urlopen("https://registry.npmjs.org/greet").read()'`,
		`/usr/bin/python3 -c 'from pip._vendor import requests; assert "tarball" in requests.get("https://registry.npmjs.org/greet").text'`,
		`node -e 'fetch("https://registry.npmjs.org/greet").then(r => r.json()).then(p => { if (!p.versions) process.exit(1) })'`,
	} {
		sh("a", script)
	}
	// A host without a rule fails at once, whatever connects.
	for program, script := range map[string]string{
		"git":    "git clone -q https://other.test/x.git o1",
		"curl":   "curl -sSf https://other.test/",
		"pip":    "/usr/bin/python3 -m pip -q install --retries 0 --no-deps --target o2 --index-url https://other.test/simple greet",
		"go":     "GOPROXY=https://other.test go mod download example.test/greet@v1.0.1",
		"node":   `node -e 'fetch("https://other.test/").then(r => process.exit(r.ok ? 0 : 1))'`,
		"python": `/usr/bin/python3 -c 'import urllib.request as u; u.urlopen("https://other.test/")'`,
	} {
		began := time.Now()
		_, errs, code := h.Try("run", "a", "--", "bash", "-ec", script)
		assert.NotZero(t, code, program)
		assert.Less(t, time.Since(began), 15*time.Second, program)
		assert.Contains(t, errs, "other.test:443 is not allowed: scopefs allow other.test ", program)
	}
}
