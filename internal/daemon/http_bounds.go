package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/loopback"
)

// The bounds of HTTP.
const (
	// bodyTime is for a request to be there as a whole.
	bodyTime = 30 * time.Second
	// headerTime is for the header of a request. Local clients send it in one piece.
	headerTime = 3 * time.Second
)

// connections bounds them: every process of the host may connect, and a connection takes a descriptor from what else the
// daemon does. The owner of a connection is the agent whose token it has.
var connections = loopback.Bounds{All: 1024, Strangers: 128, Each: 2 * agent.MaxRequests}

// bounded serves no token so much that nothing is left for others, and none after its end.
func (h *httpFace) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		refuse := func(text string, status int) {
			w.Header().Set("Connection", "close")
			_ = control.SetReadDeadline(time.Now())
			http.Error(w, text, status)
		}
		id, ends, ok := h.whose(r)
		if ok && !time.Now().Before(ends) {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`) // RFC 6750, section 3.1
			refuse(fmt.Sprintf("the token of %s ended %s: make another with scopefs token %s", id,
				ends.UTC().Format(time.RFC3339), id), http.StatusUnauthorized)
			return
		}
		var a *agent.Agent
		if ok {
			a = h.d.agent(id)
		}
		if a == nil {
			next.ServeHTTP(w, r) // which refuses
			return
		}
		end, ok := a.BeginRequest()
		if !ok {
			refuse("there are too many requests under way", http.StatusTooManyRequests)
			return
		}
		defer end()
		ctx, cancel := context.WithDeadline(r.Context(), ends) // also of a stream that is open for days
		defer cancel()
		r = r.WithContext(ctx)
		defer loopback.Begin(r.Context(), string(id))()
		if r.Body != http.NoBody {
			_ = control.SetReadDeadline(time.Now().Add(h.patience))
			body := &timely{ReadCloser: r.Body, control: control}
			r.Body = body
			defer body.over()
		}
		next.ServeHTTP(w, r)
	})
}

// timely is a body with a deadline, which goes with its end: from there on the
// server reads to see whether the client is still there, as long as it answers.
type timely struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool
}

func (t *timely) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		t.ended = true
		_ = t.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// over discards the rest of an unread body when the request is answered.
func (t *timely) over() {
	if !t.ended {
		_ = t.control.SetReadDeadline(time.Now())
	}
}
