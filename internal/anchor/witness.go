package anchor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/internal/dial"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
	"github.com/scopefs/scopefs/tools/egress"
)

// toWitness gives the newest head to a witness. {state}/heads/NAME gets it with the witness's signature.
func toWitness(ctx context.Context, r Request) error {
	key, err := witness.NewVerifier(r.Key)
	if err != nil {
		return err
	}
	w := &witness.Witness{URL: r.Witness, Verifier: key,
		Client: egress.NewClient(egress.NewTransport(dial.Context, egress.ClientLimits{Header: 64 << 10}))}
	if last, err := os.ReadFile(filepath.Join(r.State, state.Heads, r.Name)); err == nil {
		var origin string
		var size int64 // the witness says what it has, if this is wrong
		if _, err := fmt.Sscanf(string(last), "%s\n%d\n", &origin, &size); err == nil && origin == r.Origin {
			w.Size = size
		}
	}
	signed, err := w.Add(ctx, func(ctx context.Context, from int64) (h witness.Head, err error) {
		size := int64(0)
		if h.Signed, size, h.Proof, err = proof.Growth(ctx, r.Audit, from); err == nil && from > size {
			err = fmt.Errorf("%w: a head of %d lines, and the log has %d", witness.ErrFork, from, size)
		}
		return h, err
	})
	if err != nil {
		return err
	}
	return state.SaveHead(r.State, r.Name, signed)
}
