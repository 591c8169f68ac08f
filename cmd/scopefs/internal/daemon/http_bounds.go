package daemon

import (
	"io"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// The bounds of HTTP.
const (
	// maxRequests bounds those under way with one token: its 32 calls, and as many
	// clients' streams.
	maxRequests = 64
	// bodyTime is for a request to be there as a whole.
	bodyTime = 30 * time.Second
	// headerTime is for the header of a request. Local clients send it in one piece.
	headerTime = 3 * time.Second
)

// bounded serves no token so much that nothing is left for others.
func (h *httpFace) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := h.whose(r)
		if !ok {
			next.ServeHTTP(w, r) // which refuses
			return
		}
		control := http.NewResponseController(w)
		if !h.enter(id) {
			w.Header().Set("Connection", "close")
			_ = control.SetReadDeadline(time.Now())
			http.Error(w, "there are too many requests under way", http.StatusTooManyRequests)
			return
		}
		defer h.leave(id)
		if conn, ok := r.Context().Value(connKey{}).(*httpConn); ok {
			conn.begin(id)
			defer conn.end()
		}
		if r.Body != http.NoBody {
			_ = control.SetReadDeadline(time.Now().Add(h.patience))
			body := &timely{ReadCloser: r.Body, control: control}
			r.Body = body
			defer body.over()
		}
		next.ServeHTTP(w, r)
	})
}

func (h *httpFace) enter(id scope.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.under[id] >= maxRequests {
		return false
	}
	h.under[id]++
	return true
}

func (h *httpFace) leave(id scope.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.under[id]--
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

// over is called when the request is answered: what is not there by then is not
// waited for.
func (t *timely) over() {
	if !t.ended {
		_ = t.control.SetReadDeadline(time.Now())
	}
}
