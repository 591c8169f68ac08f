package anchor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
	"github.com/scopefs/scopefs/tools/egress"
)

// dialTime limits a connection to a server.
const dialTime = 10 * time.Second

// toWitness gives the newest head to a witness. {state}/heads/NAME gets it with the witness's signature.
func toWitness(ctx context.Context, r Request) error {
	key, err := witness.NewVerifier(r.Key)
	if err != nil {
		return err
	}
	dial := (&net.Dialer{Timeout: dialTime}).DialContext
	w := &witness.Witness{URL: r.Witness, Verifier: key, Client: egress.NewClient(egress.NewTransport(dial, egress.ClientLimits{Header: 64 << 10}))}
	if last, err := os.ReadFile(filepath.Join(r.State, state.Heads, r.Name)); err == nil {
		var origin string
		var size int64 // the witness says what it has, if this is wrong
		if _, err := fmt.Sscanf(string(last), "%s\n%d\n", &origin, &size); err == nil && origin == r.Origin {
			w.Size = size
		}
	}
	signed, err := w.Add(ctx, func(ctx context.Context, from int64) (h witness.Head, err error) {
		if from > r.Size {
			return h, fmt.Errorf("%w: a head of %d lines, and the log has %d", witness.ErrFork, from, r.Size)
		}
		signed, grown, err := audit.Growths(ctx, r.Audit, []int64{from})
		if err != nil {
			return h, err
		}
		size := int64(0)
		if _, err := fmt.Sscanf(string(signed), "%s\n%d\n", new(string), &size); err != nil {
			return h, err
		}
		h.Signed = signed
		switch {
		case len(grown) > 0:
			h.Proof = grown[0].Proof
		case from != 0 && from != size:
			return h, fmt.Errorf("the log does not show how its head of %d lines grows from that of %d: lines are missing", size, from)
		}
		return h, nil
	})
	if err != nil {
		return err
	}
	return state.SaveHead(r.State, r.Name, signed)
}
