package daemon

import (
	"context"
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

// bounded serves a request of an agent: none so much that nothing is left for others, and none after the end of its token t;
// nil: it needs none.
func (h *httpFace) bounded(w http.ResponseWriter, r *http.Request, a *agent.Agent, t *token, next http.Handler) {
	end, ok := a.BeginRequest()
	if !ok {
		refuse(w, "there are too many requests under way", http.StatusTooManyRequests)
		return
	}
	defer end()
	if t != nil {
		ctx, cancel := context.WithDeadline(r.Context(), t.Ends) // also of a stream that is open for days
		defer cancel()
		defer context.AfterFunc(t.life, cancel)()
		r = r.WithContext(ctx)
	}
	defer loopback.Begin(r.Context(), string(a.ID()))()
	if r.Body != http.NoBody {
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(h.patience))
		body := &timely{ReadCloser: r.Body, control: control}
		r.Body = body
		defer body.over()
	}
	next.ServeHTTP(w, r)
}

// refuse sends an error and closes the connection. The read deadline discards the rest of an unread body.
func refuse(w http.ResponseWriter, text string, status int) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	http.Error(w, text, status)
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
