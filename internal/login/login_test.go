package login

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
)

// An issuer is a token endpoint. answer decides about the nth refresh; body is its request.
type issuer struct {
	Login
	asked    atomic.Int32
	answer   func(n int, body string) (status int, text string)
	outcomes []string
	mu       sync.Mutex
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status, text := i.answer(int(i.asked.Add(1)), string(body))
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	i.Login = Login{Program: "fake", Home: t.TempDir(), File: ".fake/auth.json", Remedy: "run fake login", Access: "o.access", Refresh: "o.refresh", Expires: "o.expires",
		ID: "o.id", Claims: []string{"plan"}, Keep: []string{"o.plan", "o.none"}, Set: map[string]any{"o.expires": 4102444800000}, URL: s.URL, Client: "c1"}
	require.NoError(t, os.Mkdir(filepath.Join(i.Home, ".fake"), 0o700))
	return i
}

func (i *issuer) write(t *testing.T, access, refresh string, left time.Duration) {
	text := fmt.Sprintf(`{"o": {"access": %q, "refresh": %q, "expires": %d, "plan": "max", "id": %q}, "other": {"secret": "other-secret", "big": 12345678901234567890}}`,
		access, refresh, time.Now().Add(left).UnixMilli(), jwt(`{"plan":"max","email":"me"}`))
	require.NoError(t, os.WriteFile(i.path(), []byte(text), 0o600))
}

func jwt(claims string) string {
	e := base64.RawURLEncoding.EncodeToString
	return e([]byte(`{"alg":"RS256"}`)) + "." + e([]byte(claims)) + "." + e([]byte("signature"))
}

func (i *issuer) read(t *testing.T) (string, error) {
	got, err := i.Secret("x", func(e audit.Event) {
		i.mu.Lock()
		defer i.mu.Unlock()
		assert.Equal(t, "POST "+i.URL, e.Target)
		i.outcomes = append(i.outcomes, e.Outcome)
	}).Read(t.Context())
	return got.Reveal(), err
}

func (i *issuer) has(t *testing.T) object {
	text, err := os.ReadFile(i.path())
	require.NoError(t, err)
	o, err := parse(text)
	require.NoError(t, err)
	return o
}

// TestRefresh: a token that ends soon is refreshed, each refresh token is used once, and the rest of the file stays.
func TestRefresh(t *testing.T) {
	i := newIssuer(t)
	i.answer = func(n int, body string) (int, string) {
		assert.JSONEq(t, fmt.Sprintf(`{"grant_type": "refresh_token", "refresh_token": "refresh-%d", "client_id": "c1"}`, n), body)
		return 200, fmt.Sprintf(`{"access_token": "access-%d", "refresh_token": "refresh-%d", "expires_in": %d}`, n+1, n+1, map[int]int{1: 60, 2: 3600}[n])
	}
	i.write(t, "access-1", "refresh-1", time.Hour)
	got, err := i.read(t)
	require.NoError(t, err)
	assert.Equal(t, "access-1", got)
	assert.Zero(t, i.asked.Load())

	i.write(t, "access-1", "refresh-1", -time.Hour)
	for n := 2; n < 5; n++ { // the last one is fresh enough
		got, err = i.read(t)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("access-%d", min(n, 3)), got)
	}
	assert.Equal(t, []string{"end", "end"}, i.outcomes)
	o := i.has(t)
	assert.Equal(t, "refresh-3", o.text("o.refresh"))
	assert.Equal(t, "max", o.text("o.plan"))
	assert.Equal(t, json.Number("12345678901234567890"), o["other"].(map[string]any)["big"])
	assert.WithinDuration(t, time.Now().Add(time.Hour), time.UnixMilli(o.number("o.expires")), time.Minute)
	info, err := os.Stat(i.path())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	left, err := os.ReadDir(filepath.Dir(i.path()))
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// TestRefreshTogether: sessions that need a token at once refresh it once.
func TestRefreshTogether(t *testing.T) {
	i := newIssuer(t)
	i.answer = func(n int, _ string) (int, string) {
		return 200, `{"access_token": "access-2", "refresh_token": "refresh-2", "expires_in": 3600}`
	}
	i.write(t, "access-1", "refresh-1", -time.Hour)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			got, err := i.read(t)
			assert.NoError(t, err)
			assert.Equal(t, "access-2", got)
		})
	}
	wait.Wait()
	assert.EqualValues(t, 1, i.asked.Load())
}

// TestRefreshRefused: a token that still holds is used; one that has ended is an error, which says what to do and quotes nothing.
func TestRefreshRefused(t *testing.T) {
	for answer, want := range map[string]string{
		`{"error": "invalid_grant", "error_description": "refresh-1"}`: "status 400, invalid_grant",
		`{"error": {"message": "refresh-1"}}`:                          "status 400, no reason",
		`refresh-1`:                                                    "status 400, no reason",
	} {
		i := newIssuer(t)
		i.answer = func(int, string) (int, string) { return 400, answer }
		i.write(t, "access-1", "refresh-1", 2*time.Minute)
		got, err := i.read(t)
		require.NoError(t, err)
		assert.Equal(t, "access-1", got)
		i.write(t, "access-1", "refresh-1", -time.Minute)
		before := i.has(t)
		_, err = i.read(t)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "the login of fake has expired and cannot be refreshed")
		assert.ErrorContains(t, err, "run fake login")
		assert.NotContains(t, err.Error(), "refresh-1")
		assert.Equal(t, before, i.has(t))
	}
	for _, answer := range []string{`{}`, `[]`, `{"access_token": "a\nb"}`, ``} {
		i := newIssuer(t)
		i.answer = func(int, string) (int, string) { return 200, answer }
		i.write(t, "access-1", "refresh-1", -time.Minute)
		_, err := i.read(t)
		assert.ErrorContains(t, err, "answers without a token")
	}
}

// TestRefreshMeanwhile: what the program itself does with its file during a refresh of ours.
func TestRefreshMeanwhile(t *testing.T) {
	const fresh = `{"access_token": "access-2", "refresh_token": "refresh-2", "expires_in": 3600}`
	for name, c := range map[string]struct {
		does        func(*testing.T, *issuer)
		status      int
		got, err    string
		has, absent string // the refresh token of the file after it
	}{
		"refreshes, and ours is refused": {func(t *testing.T, i *issuer) { i.write(t, "access-9", "refresh-9", time.Hour) }, 400, "access-9", "", "refresh-9", ""},
		"logs in anew, and ours holds":   {func(t *testing.T, i *issuer) { i.write(t, "access-9", "refresh-9", time.Hour) }, 200, "access-9", "", "refresh-9", ""},
		"has expired tokens":             {func(t *testing.T, i *issuer) { i.write(t, "access-9", "refresh-9", -time.Hour) }, 200, "", "has changed meanwhile", "refresh-9", ""},
		"finds its token dead":           {func(t *testing.T, i *issuer) { i.write(t, "", "", 0) }, 200, "access-2", "", "refresh-2", ""},
		"logs out":                       {func(t *testing.T, i *issuer) { require.NoError(t, os.WriteFile(i.path(), []byte("{}"), 0o600)) }, 200, "", "has changed meanwhile", "", ""},
		"writes another key": {func(t *testing.T, i *issuer) {
			require.NoError(t, os.WriteFile(i.path(), []byte(`{"o": {"access": "access-1", "refresh": "refresh-1", "new": 1}}`), 0o600))
		}, 200, "access-2", "", "refresh-2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t)
			i.answer = func(int, string) (int, string) { c.does(t, i); return c.status, fresh }
			i.write(t, "access-1", "refresh-1", -time.Minute)
			got, err := i.read(t)
			assert.Equal(t, c.got, got)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, c.has, i.has(t).text("o.refresh"))
			if name == "writes another key" {
				assert.EqualValues(t, 1, i.has(t).number("o.new"))
			}
		})
	}
}

// TestRefreshUnwritable: where tokens cannot be written, the issuer is not asked for any.
func TestRefreshUnwritable(t *testing.T) {
	i := newIssuer(t)
	i.answer = func(int, string) (int, string) { return 500, "" }
	i.write(t, "access-1", "refresh-1", -time.Minute)
	require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(i.path()), "."+filepath.Base(i.path()), "x"), 0o700))
	_, err := i.read(t)
	require.ErrorContains(t, err, "could not be written")
	assert.Zero(t, i.asked.Load())
}

// TestRefreshBounded: an issuer that does not answer delays nobody for longer than the request that waits.
func TestRefreshBounded(t *testing.T) {
	i := newIssuer(t)
	i.answer = func(int, string) (int, string) { return 503, "" }
	i.write(t, "access-1", "refresh-1", -time.Minute)
	_, err := i.read(t)
	require.ErrorContains(t, err, "is not ready (status 503, no reason): try again")
	ctx, cancel := context.WithCancel(t.Context())
	i.answer = func(int, string) (int, string) { cancel(); <-ctx.Done(); time.Sleep(time.Millisecond); return 500, "" }
	i.write(t, "access-1", "refresh-1", -time.Minute)
	_, err = i.Secret("x", func(audit.Event) {}).Read(ctx)
	require.ErrorContains(t, err, "cannot be refreshed")
}

// TestLink: a file that is kept elsewhere stays there.
func TestLink(t *testing.T) {
	i := newIssuer(t)
	i.answer = func(int, string) (int, string) { return 200, `{"access_token": "access-2"}` }
	i.write(t, "access-1", "refresh-1", -time.Minute)
	there := filepath.Join(t.TempDir(), "kept.json")
	require.NoError(t, os.Rename(i.path(), there))
	require.NoError(t, os.Symlink(there, i.path()))
	got, err := i.read(t)
	require.NoError(t, err)
	assert.Equal(t, "access-2", got)
	link, err := os.Readlink(i.path())
	require.NoError(t, err)
	assert.Equal(t, there, link)
	assert.Equal(t, "refresh-1", i.has(t).text("o.refresh"), "an answer may have none (RFC 6749, 6)")
}

// TestCopied: a sandbox has what the login names, and no token.
func TestCopied(t *testing.T) {
	i := newIssuer(t)
	i.write(t, "access-1", "refresh-1", time.Hour)
	text, err := i.copied("scopefs-secret-X")
	require.NoError(t, err)
	var got struct{ O map[string]any }
	require.NoError(t, json.Unmarshal(text, &got))
	parts := strings.Split(got.O["id"].(string), ".")
	require.Len(t, parts, 3)
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	assert.Equal(t, `{"plan":"max"}`, string(payload))
	delete(got.O, "id")
	assert.Equal(t, map[string]any{"access": "scopefs-secret-X", "plan": "max", "expires": 4102444800000.0}, got.O)
	for _, secret := range []string{"access-1", "refresh-1", "other", parts[2] + "x", base64.RawURLEncoding.EncodeToString([]byte("signature"))} {
		assert.NotContains(t, string(text), secret)
	}
	i.Keep = []string{"o"}
	_, err = i.copied("scopefs-secret-X")
	assert.ErrorContains(t, err, "keep: has a token")
}

// TestCheck: what a file must be.
func TestCheck(t *testing.T) {
	i := newIssuer(t)
	assert.ErrorContains(t, i.Check(), "fake: no login in "+i.path()+": run fake login")
	for text, want := range map[string]string{"": "is no JSON", `{"o": {}}`: "no login in", `{"o": 1}`: "no login in", `[1]`: "is no JSON"} {
		require.NoError(t, os.WriteFile(i.path(), []byte(text), 0o600))
		assert.ErrorContains(t, i.Check(), want, text)
	}
	i.write(t, "access-1", "refresh-1", time.Hour)
	require.NoError(t, i.Check())
	require.NoError(t, os.Chmod(i.path(), 0o640))
	assert.ErrorContains(t, i.Check(), "chmod 600")
	require.NoError(t, os.Remove(i.path()))
	require.NoError(t, os.Mkdir(i.path(), 0o700))
	assert.ErrorContains(t, i.Check(), "no regular file")
	i.Home = "x"
	assert.ErrorContains(t, i.Check(), "no login")
}

// TestExpires: a token without a key for its end ends as it says itself, or never.
func TestExpires(t *testing.T) {
	i := newIssuer(t)
	i.Expires = ""
	i.answer = func(int, string) (int, string) { return 200, `{"access_token": "access-2"}` }
	for access, want := range map[string]string{"opaque": "opaque", jwt(`{"exp": 1}`): "access-2", jwt(fmt.Sprintf(`{"exp": %d}`, time.Now().Add(time.Hour).Unix())): ""} {
		i.write(t, access, "refresh-1", time.Hour)
		got, err := i.read(t)
		require.NoError(t, err)
		if want == "" {
			want = access
		}
		assert.Equal(t, want, got)
	}
}
