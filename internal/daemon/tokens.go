package daemon

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
)

// tokens are the tokens for HTTP that the operator has made. {state}/tokens.json says what they are for; the key of
// {state}/http.key makes their text, which is stored nowhere.
type tokens struct {
	state  string
	record func(audit.Event)
	key    func() ([]byte, error)    // reads or makes the file, once
	oldEnd func() (time.Time, error) // of tokens in which no end is written, likewise

	writing sync.Mutex // one change after another; requests do not wait for it

	mu   sync.Mutex
	read bool
	all  map[string]*token // by their id
}

// token is a token that a request has, valid or not any more.
type token struct {
	api.Token
	earlier bool            // of an earlier release: it has no id and no origin, and is not in the list
	life    context.Context // ends when it is revoked
	revoke  context.CancelFunc
	foreign *ledger.Repeats // uses by processes of other users: somebody has copied it; nil for one of an earlier release
}

// tokenTime is how long a token is valid if the operator gives no other time.
const tokenTime = 30 * 24 * time.Hour

const (
	maxTokens     = 1024
	maxTokensFile = 1 << 20
	tokensFile    = "tokens.json"
	tokenID       = "t" // begins each id: a number there is the end of a token of an earlier release
)

func newTokens(state string, record func(audit.Event)) *tokens {
	t := &tokens{state: state, record: record, all: map[string]*token{}}
	t.key = sync.OnceValues(t.readKey)
	t.oldEnd = sync.OnceValues(t.oldTokensEnd)
	return t
}

// readKey reads or makes the key of which all tokens are made. To make every token void, also those of earlier releases, remove
// the file and start the daemon again.
func (t *tokens) readKey() ([]byte, error) {
	name := filepath.Join(t.state, "http.key")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("key of tokens: %w", err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, 64))
	if err == nil && len(key) != sha256.Size {
		key = make([]byte, sha256.Size)
		rand.Read(key)
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(key, 0)
		}
		if err == nil { // no token of the list is valid
			err = os.RemoveAll(filepath.Join(t.state, tokensFile))
		}
		// A token is worth nothing when the power takes its key.
		if err == nil {
			err = errors.Join(f.Sync(), durable.SyncDir(t.state))
		}
	}
	return key, err
}

// oldTokensEnd returns when the tokens of earlier releases end: tokenTime after this release has first served HTTP. A file
// keeps that for later starts.
func (t *tokens) oldTokensEnd() (time.Time, error) {
	root, err := os.OpenRoot(t.state)
	if err != nil {
		return time.Time{}, fmt.Errorf("http: %w", err)
	}
	defer root.Close()
	const name = "http.old"
	text, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		text = time.Now().Add(tokenTime).UTC().AppendFormat(nil, time.RFC3339)
		err = durable.Replace(root, name, append(text, '\n'), durable.Options{})
	}
	var ends time.Time
	if err == nil {
		ends, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	}
	if err != nil {
		return ends, fmt.Errorf("http: the end of old tokens: %s: %w: remove the file", filepath.Join(t.state, name), err)
	}
	return ends, nil
}

// load reads the list once. After an error the daemon accepts no token of it and makes none, and the next load tries again.
func (t *tokens) load() error {
	if t.loaded() {
		return nil
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	return t.loadAlone()
}

func (t *tokens) loaded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read
}

// loadAlone is load for a caller that holds t.writing.
func (t *tokens) loadAlone() error {
	if t.loaded() {
		return nil
	}
	if _, err := t.key(); err != nil { // a new one has no list
		return err
	}
	name := filepath.Join(t.state, tokensFile)
	var list []api.Token
	f, err := os.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err == nil:
		var text []byte
		if text, err = bounded.Read(f, maxTokensFile); err == nil {
			err = json.Unmarshal(text, &list)
		}
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("list of tokens: %s: %w: restore the file, or remove it, which revokes them", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range list {
		t.add(one)
	}
	t.read = true
	return nil
}

// add makes a token valid. The caller holds t.mu.
func (t *tokens) add(one api.Token) {
	added := &token{Token: one}
	added.life, added.revoke = context.WithCancel(context.Background())
	added.foreign = &ledger.Repeats{Record: t.record, Event: func(uid uint32, others int64) audit.Event {
		e := audit.Event{Event: audit.KindAgent, Agent: string(one.Agent), Verdict: audit.Violation, Outcome: "token refused",
			Detail: one.ID + " is for " + one.From(), Unrecorded: others}
		if uid != 0 {
			e.UID = &uid
		}
		return e
	}}
	t.all[one.ID] = added
}

// close records what is not recorded yet. There are no more requests.
func (t *tokens) close() {
	for _, one := range t.all {
		one.foreign.Close()
	}
}

// list returns the tokens, those that have ended, too.
func (t *tokens) list() []api.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]api.Token, 0, len(t.all))
	for _, one := range t.all {
		list = append(list, one.Token)
	}
	slices.SortFunc(list, func(a, b api.Token) int {
		return cmp.Or(strings.Compare(string(a.Agent), string(b.Agent)), a.Made.Compare(b.Made), strings.Compare(a.ID, b.ID))
	})
	return list
}

// change replaces the list, first in the file, and ends the requests with tokens that are gone.
func (t *tokens) change(f func(all map[string]api.Token) error) error {
	gone, err := t.replace(f)
	for _, one := range gone {
		one.foreign.Close()
	}
	return err
}

func (t *tokens) replace(f func(all map[string]api.Token) error) (gone []*token, err error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := t.loadAlone(); err != nil {
		return nil, err
	}
	all := map[string]api.Token{}
	for _, one := range t.list() {
		all[one.ID] = one
	}
	if err := f(all); err != nil {
		return nil, err
	}
	text, err := json.Marshal(slices.Collect(maps.Values(all)))
	if err != nil {
		return nil, err
	}
	if err := durable.ReplaceAt(filepath.Join(t.state, tokensFile), append(text, '\n'), durable.Options{}); err != nil {
		return nil, fmt.Errorf("list of tokens: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, one := range t.all {
		if _, kept := all[id]; !kept {
			one.revoke()
			gone = append(gone, one)
			delete(t.all, id)
		}
	}
	for id, one := range all {
		if t.all[id] == nil {
			t.add(one)
		}
	}
	return gone, nil
}

// Token makes a token of an agent for HTTP.
func (d *Daemon) Token(ctx context.Context, id scope.ID, req api.TokenRequest) (api.TokenReply, error) {
	if _, err := d.Definition(id); err != nil {
		return api.TokenReply{}, err
	}
	if req.For < 0 {
		return api.TokenReply{}, invalid("the time of a token is not above zero: write one such as 30d")
	}
	if req.Origin != nil && !d.Root && *req.Origin != uint32(os.Geteuid()) {
		return api.TokenReply{}, invalid("the daemon of an ordinary user serves its user alone: leave --origin out")
	}
	key, err := d.tokens.key()
	if err != nil {
		return api.TokenReply{}, err
	}
	now := time.Now()
	made := api.Token{ID: tokenID + strings.ToLower(rand.Text()[:9]), Agent: id, Origin: req.Origin,
		Made: now.Truncate(time.Second), Ends: now.Add(cmp.Or(req.For, tokenTime)).Truncate(time.Second)}
	if err := d.recordToken(ctx, made, "token made"); err != nil {
		return api.TokenReply{}, err
	}
	err = d.tokens.change(func(all map[string]api.Token) error {
		maps.DeleteFunc(all, func(_ string, one api.Token) bool { return now.Sub(one.Ends) > tokenTime })
		if len(all) >= maxTokens {
			return fmt.Errorf("there are %d tokens: revoke some (scopefs token list)", len(all))
		}
		all[made.ID] = made
		return nil
	})
	if err != nil {
		return api.TokenReply{}, err
	}
	return api.TokenReply{Token: signed(key, string(id)+"."+made.ID), ID: made.ID, Ends: made.Ends}, nil
}

// Tokens returns the tokens of all agents that have not ended.
func (d *Daemon) Tokens() ([]api.Token, error) {
	if err := d.tokens.load(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(d.tokens.list(), func(one api.Token) bool { return !time.Now().Before(one.Ends) }), nil
}

// RevokeTokens revokes a token by its id, or all of an agent, and ends the requests that have it. It returns what it has revoked.
func (d *Daemon) RevokeTokens(ctx context.Context, name string) ([]api.Token, error) {
	all, err := d.tokensOf(name)
	if err == nil && len(all) == 0 {
		err = invalid("%.80q is no valid token and no agent that has one: scopefs token list lists them", name)
	}
	if err != nil {
		return nil, err
	}
	return all, d.revokeTokens(ctx, all)
}

// tokensOf returns the tokens that a name means.
func (d *Daemon) tokensOf(name string) ([]api.Token, error) {
	all, err := d.Tokens()
	return slices.DeleteFunc(all, func(one api.Token) bool { return one.ID != name && string(one.Agent) != name }), err
}

func (d *Daemon) revokeTokens(ctx context.Context, all []api.Token) error {
	if len(all) == 0 {
		return nil
	}
	err := d.tokens.change(func(now map[string]api.Token) error {
		for _, one := range all {
			delete(now, one.ID)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, one := range all { // afterwards: a log that cannot be written keeps no token alive
		err = errors.Join(err, d.recordToken(ctx, one, "token revoked"))
	}
	return err
}

func (d *Daemon) recordToken(ctx context.Context, one api.Token, outcome string) error {
	operator, _ := api.PeerOf(ctx)
	return d.Record(ctx, audit.Event{Event: audit.KindAgent, Agent: string(one.Agent), Outcome: outcome, UID: &operator,
		Detail: fmt.Sprintf("%s, until %s, for %s", one.ID, one.Ends.UTC().Format(time.RFC3339), one.From())})
}

// signed returns the text of a token.
func signed(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("scopefs mcp " + name))
	return name + "." + hex.EncodeToString(mac.Sum(nil))
}

// of returns the token that a request has, which may have ended, or nil.
func (t *tokens) of(r *http.Request) (*token, error) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	name, rest, _ := strings.Cut(given, ".")
	id, bad := scope.ParseID(name)
	// The case of a scheme does not matter: RFC 9110, section 11.1.
	if bad != nil || !strings.EqualFold(scheme, "Bearer") {
		return nil, nil
	}
	key, err := t.key()
	if err != nil {
		return nil, err
	}
	text, _, middle := strings.Cut(rest, ".")
	found := &token{Token: api.Token{Agent: id}, earlier: true, life: context.Background()}
	want := signed(key, name)
	switch {
	case !middle:
		found.Ends, err = t.oldEnd()
	case strings.HasPrefix(text, tokenID):
		if err = t.load(); err == nil {
			t.mu.Lock()
			found = t.all[text]
			t.mu.Unlock()
			if found == nil || found.Agent != id {
				return nil, nil
			}
			want = signed(key, name+"."+text)
		}
	default:
		seconds, bad := strconv.ParseInt(text, 10, 64)
		if bad != nil {
			return nil, nil
		}
		found.Ends = time.Unix(seconds, 0)
		want = signed(key, fmt.Sprintf("%s.%d", name, seconds))
	}
	if err != nil || !hmac.Equal([]byte(given), []byte(want)) {
		return nil, err
	}
	return found, nil
}

// admits reports whether processes of a user may use the token: those of its origin, root's and the daemon's. Without an
// origin it is the agent's user, as for the agent's socket.
func (one *token) admits(uid uint32, a *agent.Agent) bool {
	switch {
	case one.earlier, uid == 0, uid == uint32(os.Geteuid()):
		return true
	case one.Origin != nil:
		return uid == *one.Origin
	}
	return a.IsOf(uid)
}
