// Package witness has the keys of witnesses, c2sp.org/tlog-cosignature, and gives signed heads of the log to a witness, which
// signs them, too, if they grow from the one that it has seen before: c2sp.org/tlog-witness. A log that was rewritten gets no
// signature any more.
package witness

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Witness is a server that the operator has named.
type Witness struct {
	URL      string        // the submission prefix
	Verifier note.Verifier // of its signatures: see NewVerifier
	Client   *http.Client

	Size int64 // of the last head that it has signed, as far as that is known
}

// Head is a signed head, and the proof that it grows from an earlier one.
type Head struct {
	Signed []byte
	Proof  []tlog.Hash // from the head of the size that was asked for
}

// ErrFork reports that a witness has seen another history of the log.
var ErrFork = errors.New("the witness has seen another history of this log")

// maxAnswer limits a response, in bytes.
const maxAnswer = 16 << 10

// Add gives the log's head to the witness, and returns the head with the witness's signature. head returns the newest head,
// with the proof from a size.
func (w *Witness) Add(ctx context.Context, head func(ctx context.Context, from int64) (Head, error)) ([]byte, error) {
	for range 3 { // it says which head it has, and another daemon may give it one meanwhile
		h, err := head(ctx, w.Size)
		if err != nil {
			return nil, err
		}
		status, answer, err := w.post(ctx, h)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusConflict:
			size, err := strconv.ParseInt(strings.TrimSpace(string(answer)), 10, 64)
			if err != nil || size < 0 {
				return nil, fmt.Errorf("the witness does not say which head it has: %.60q", answer)
			}
			if size == w.Size {
				return nil, ErrFork // of the same size, and another head
			}
			w.Size = size
			continue
		case status == http.StatusUnprocessableEntity:
			return nil, ErrFork
		case status != http.StatusOK:
			return nil, fmt.Errorf("the witness answers %d %s: %.100q", status, http.StatusText(status), answer)
		}
		signed := append(bytes.Clone(h.Signed), answer...)
		n, err := note.Open(signed, note.VerifierList(w.Verifier))
		if err != nil {
			return nil, fmt.Errorf("the signature of the witness: %w", err)
		}
		_, err = fmt.Sscanf(n.Text, "%s\n%d\n", new(string), &w.Size)
		return signed, err
	}
	return nil, errors.New("the witness has another head each time")
}

func (w *Witness) post(ctx context.Context, h Head) (status int, answer []byte, err error) {
	var body bytes.Buffer
	fmt.Fprintf(&body, "old %d\n", w.Size)
	for _, one := range h.Proof {
		fmt.Fprintf(&body, "%s\n", base64.StdEncoding.EncodeToString(one[:]))
	}
	fmt.Fprintf(&body, "\n%s", h.Signed)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(w.URL, "/")+"/add-checkpoint", &body)
	if err != nil {
		return 0, nil, err
	}
	resp, err := w.Client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, answer, err
}
