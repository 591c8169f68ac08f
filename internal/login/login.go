// Package login keeps the login of an agent program, made in its user's HOME, outside of sandboxes: it reads the program's
// file, refreshes the access token at the issuer, and makes the copy without secrets that a sandbox has.
package login

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools/egress"
)

// A Login says where a program keeps its login, and what of it a sandbox has. Its keys are paths in the file, which is
// JSON, with dots between names.
type Login struct {
	Program string `json:"program"`
	File    string `json:"file"` // below HOME
	Home    string `json:"home"` // of the user
	Remedy  string `json:"remedy"`

	Access  string `json:"access"`            // the token of requests
	Refresh string `json:"refresh"`           // the token of refreshes, which no sandbox has
	Expires string `json:"expires,omitempty"` // of the access token, in ms since 1970; "": its claim exp (RFC 7519)
	ID      string `json:"id,omitempty"`      // the ID token, which a refresh may renew

	Keep   []string       `json:"keep,omitempty"`   // what the copy has as the file
	Claims []string       `json:"claims,omitempty"` // of the ID token, which the copy has without its signature
	Set    map[string]any `json:"set,omitempty"`    // what else the copy has

	URL    string `json:"url"` // of the issuer's token endpoint (RFC 6749, 3.2)
	Client string `json:"client"`

	// Args follow the first After words of the command of a run with the login; Env are its variables.
	Args  []string          `json:"args,omitempty"`
	After int               `json:"after,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
}

const (
	maxFile    = 1 << 20          // bytes, of the file and of an answer
	maxHeaders = 64 << 10         // bytes, of an answer
	early      = 5 * time.Minute  // before its end a token is refreshed
	waitTime   = 20 * time.Second // for another refresh of the same file, or for an answer
	shortLife  = time.Hour        // of a token whose answer says no time
)

// errDead is the error of a login that the issuer has ended.
var errDead = errors.New("the login has ended")

func (l Login) path() string { return filepath.Join(l.Home, l.File) }

// Check reports whether the file has a login. It does not refresh it.
func (l Login) Check() error {
	at, err := l.open()
	if err != nil {
		return err
	}
	defer at.close()
	_, err = at.read()
	return err
}

// Secret returns the login as a proxy uses it. Reading refreshes a token that ends within five minutes, and writes the new
// tokens to the file. record gets each refresh.
func (l Login) Secret(placeholder string, record func(audit.Event)) egress.Secret {
	return egress.Secret{Placeholder: placeholder, File: true, Format: "Bearer %s",
		Without: []string{"X-Api-Key", "X-Goog-Api-Key"}, Source: "login " + l.path(),
		Read: func(ctx context.Context) (credential.Secret, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*waitTime)
			defer cancel()
			token, err := l.token(ctx, record)
			return credential.Known(token), err
		}}
}

func (l Login) token(ctx context.Context, record func(audit.Event)) (string, error) {
	at, err := l.open()
	if err != nil {
		return "", err
	}
	defer at.close()
	now, err := at.read()
	if err != nil || now.lasts(early) {
		return now.access, err
	}
	if err := at.lock(ctx); err != nil {
		return "", err
	}
	if now, err = at.read(); err != nil || now.lasts(early) { // another refresh has ended meanwhile
		return now.access, err
	}
	fresh, err := at.refresh(ctx, now)
	e := audit.Event{Event: audit.KindNetwork, Op: "refresh", Target: "POST " + l.URL, Verdict: audit.Allow, Outcome: "end"}
	if err != nil {
		e.Outcome, e.Detail = "failed", err.Error()
	}
	record(e)
	switch {
	case err == nil:
		return fresh, nil
	case now.lasts(0):
		return now.access, nil
	}
	remedy := "try again"
	if errors.Is(err, errDead) {
		remedy = l.Remedy
	}
	return "", fmt.Errorf("the login of %s has expired and cannot be refreshed: %w: %s", l.Program, err, remedy)
}

// Command returns the command of a run and its variables with what the login adds.
func (l Login) Command(argv []string, env map[string]string) ([]string, map[string]string) {
	all := maps.Clone(l.Env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	at := min(l.After, len(argv))
	return slices.Concat(argv[:at], l.Args, argv[at:]), all
}

// write puts the copy into the HOME of a sandbox. A login that was made there stays.
const write = `f=$HOME/$SCOPEFS_LOGIN_FILE
case $(cat "$f" 2>/dev/null) in
""|*scopefs-secret-*) (umask 077; mkdir -p "$(dirname "$f")" && printf %s "$SCOPEFS_LOGIN" >"$f.new" && mv "$f.new" "$f") ;;
esac || exit 1
unset SCOPEFS_LOGIN SCOPEFS_LOGIN_FILE
`

// Prepare returns a script of sh(1), and its variables, that runs in a sandbox before the program: it writes the program's
// file, and does what script does.
func (l Login) Prepare(script string, env map[string]string, placeholder string) (string, map[string]string, error) {
	text, err := l.copied(placeholder)
	if err != nil {
		return "", nil, err
	}
	all := map[string]string{"SCOPEFS_LOGIN": string(text), "SCOPEFS_LOGIN_FILE": l.File}
	maps.Copy(all, env)
	return write + script, all, nil
}

// copied returns the file for a sandbox: placeholder for the access token, and of the rest only what the login names.
func (l Login) copied(placeholder string) ([]byte, error) {
	at, err := l.open()
	if err != nil {
		return nil, err
	}
	defer at.close()
	now, err := at.read()
	if err != nil {
		return nil, err
	}
	out := object{}
	for _, key := range l.Keep {
		if v, ok := now.all.get(key); ok {
			out.set(key, v)
		}
	}
	for key, v := range l.Set {
		out.set(key, v)
	}
	if id := now.all.text(l.ID); id != "" {
		out.set(l.ID, unsigned(id, l.Claims))
	}
	out.set(l.Access, placeholder)
	text, err := json.MarshalIndent(out, "", "  ")
	for _, secret := range []string{now.access, now.refresh, now.all.text(l.ID)} {
		if secret != "" && bytes.Contains(text, []byte(secret)) {
			return nil, fmt.Errorf("%s: login: keep: has a token, which no sandbox may have: name keys beside it", l.Program)
		}
	}
	return text, err
}

// file is the file of a login, opened by its directory: a rename in that replaces the file meant, whatever becomes of the path.
type file struct {
	Login
	dir  *os.Root
	name string
	held *os.File // the directory, locked; nil: it is not
}

func (l Login) open() (*file, error) {
	if !filepath.IsAbs(l.Home) || !filepath.IsLocal(l.File) {
		return nil, fmt.Errorf("%s: no login: %q is not below a HOME", l.Program, l.path())
	}
	path, err := filepath.EvalSymlinks(l.path()) // a file kept elsewhere stays there
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no login in %s: %s", l.Program, l.path(), l.Remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Program, err)
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.Program, err)
	}
	return &file{Login: l, dir: dir, name: filepath.Base(path)}, nil
}

func (f *file) close() {
	if f.held != nil {
		f.held.Close()
	}
	f.dir.Close()
}

// lock waits until no other process of ours refreshes the login. The program's own knows no lock: see refresh.
func (f *file) lock(ctx context.Context) error {
	dir, err := f.dir.Open(".")
	if err != nil {
		return err
	}
	f.held = dir
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", filepath.Dir(f.path()), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: another refresh takes too long: %w", filepath.Dir(f.path()), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tokens are what a file has.
type tokens struct {
	all             object
	access, refresh string
	expires         time.Time // zero: not known
	owner           *unix.Stat_t
}

func (t tokens) lasts(more time.Duration) bool {
	return t.access != "" && (t.expires.IsZero() || time.Until(t.expires) > more)
}

// read reads the file. Its errors quote nothing of it.
func (f *file) read() (t tokens, err error) {
	in, err := f.dir.OpenFile(f.name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return t, fmt.Errorf("%s: %w", f.Program, err)
	}
	defer in.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return t, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return t, fmt.Errorf("%s: %s is no regular file: %s", f.Program, f.path(), f.Remedy)
	case st.Mode&0o077 != 0:
		return t, fmt.Errorf("%s: %s is open to others: chmod 600 it", f.Program, f.path())
	case int(st.Uid) != os.Geteuid():
		return t, fmt.Errorf("%s: %s belongs to user %d: run scopefs, and its daemon, as that user", f.Program, f.path(), st.Uid)
	}
	t.owner = &st
	text, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return t, err
	}
	if t.all, err = parse(text); err != nil {
		return t, fmt.Errorf("%s: %s is no JSON: %s", f.Program, f.path(), f.Remedy)
	}
	t.access, t.refresh = t.all.text(f.Access), t.all.text(f.Refresh)
	if t.access == "" || strings.ContainsAny(t.access, "\r\n\x00") {
		return t, fmt.Errorf("%s: no login in %s: %s", f.Program, f.path(), f.Remedy)
	}
	if ms := t.all.number(f.Expires); ms > 0 {
		t.expires = time.UnixMilli(ms)
	} else if exp := claims(t.access).number("exp"); f.Expires == "" && exp > 0 {
		t.expires = time.Unix(exp, 0)
	}
	return t, nil
}

// claims returns the payload of a JWT, whose signature nobody here checks; nil of another text.
func claims(jwt string) object {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	o, _ := parse(text)
	return o
}

// unsigned returns a JWT with some claims of another one, and no signature: no server takes it.
func unsigned(jwt string, keep []string) string {
	all, out := claims(jwt), map[string]any{}
	for _, name := range keep {
		if v, ok := all[name]; ok {
			out[name] = v
		}
	}
	text, _ := json.Marshal(out) // of JSON
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode(text) + "." + encode([]byte("none"))
}
