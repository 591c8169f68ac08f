package login

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/dial"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/tools/egress"
)

// refresh gets new tokens for those of the file, writes them to it, and returns the access token. An issuer may end a
// refresh token with its first use, so the file for the answer comes first. Where the
// program itself has written newer tokens meanwhile, those stay.
func (f *file) refresh(ctx context.Context, now tokens) (access string, err error) {
	if now.refresh == "" {
		return "", fmt.Errorf("%w: it has no refresh token", errDead)
	}
	draft, err := f.draft(now)
	if err != nil {
		return "", err
	}
	defer draft.Close()
	got, err := f.ask(ctx, now.refresh)
	later, gone := f.read()
	was, _ := later.all.get(f.Refresh) // "" is of a program that our refresh has left with a dead token
	switch {
	case gone == nil && later.refresh != now.refresh && later.lasts(0):
		return later.access, nil
	case err != nil:
		return "", err
	case was != now.refresh && was != "":
		return "", errors.New("its file has changed meanwhile")
	}
	now.all = later.all
	now.all.set(f.Access, got.Access)
	if got.Refresh != "" {
		now.all.set(f.Refresh, got.Refresh)
	}
	if got.ID != "" && f.ID != "" {
		now.all.set(f.ID, got.ID)
	}
	if f.Expires != "" {
		life := time.Duration(got.Life) * time.Second
		if life <= 0 {
			life = shortLife
		}
		now.all.set(f.Expires, time.Now().Add(life).UnixMilli())
	}
	return got.Access, draft.commit(now.all)
}

// answer is what an issuer answers (RFC 6749, 5.1 and 5.2; OpenID Connect's id_token).
type answer struct {
	Access  string  `json:"access_token"`
	Refresh string  `json:"refresh_token"`
	ID      string  `json:"id_token"`
	Life    float64 `json:"expires_in"` // s
}

// codes are errors that can be shown: those of RFC 6749 and alike, and no text of an issuer's.
var codes = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_]{1,40}$`) })

func (f *file) ask(ctx context.Context, refresh string) (got answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	body, _ := json.Marshal(map[string]string{"grant_type": "refresh_token", "refresh_token": refresh, "client_id": f.Client}) // of strings
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL, bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	transport := egress.NewTransport(dial.Context, egress.ClientLimits{Header: maxHeaders})
	defer transport.CloseIdleConnections()
	res, err := egress.NewClient(transport).Do(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // the host says enough, and the log takes what follows "token" for one
		}
		return got, fmt.Errorf("%s: %w", r.URL.Host, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxFile))
	if err != nil {
		return got, err
	}
	if res.StatusCode != http.StatusOK {
		var refused struct{ Error any }
		_ = json.Unmarshal(text, &refused)
		code, _ := refused.Error.(string)
		if !codes().MatchString(code) {
			code = "no reason"
		}
		err := errDead
		if res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests {
			err = errors.New("the issuer is not ready")
		}
		return got, fmt.Errorf("%s: %w (status %d, %s)", r.URL.Host, err, res.StatusCode, code)
	}
	if json.Unmarshal(text, &got) != nil || got.Access == "" || !plain(got.Access+got.Refresh+got.ID) {
		return answer{}, fmt.Errorf("%s: answers without a token", r.URL.Host)
	}
	return got, nil
}

// plain reports whether a text has visible ASCII characters alone, as tokens have (RFC 6749, A).
func plain(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// draft is a file that replaces the login's when it is complete.
type draft struct {
	*durable.Draft
	of *file
}

// draft makes a file beside the login's, with its owner and mode.
func (f *file) draft(now tokens) (*draft, error) {
	d, err := durable.Begin(f.dir, f.name, durable.Options{}) // one at a time: see lock
	if err != nil {
		return nil, fmt.Errorf("new tokens could not be written: %w", err)
	}
	if err := d.Chown(int(now.owner.Uid), int(now.owner.Gid)); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &draft{d, f}, nil
}

// commit writes the file and puts it in place.
func (d *draft) commit(all object) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		_, err = d.Write(append(text, '\n'))
	}
	if err == nil {
		err = d.Place()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w: its new tokens are lost: %s", d.of.path(), err, d.of.Remedy)
	}
	return nil
}
