package fleetcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/approvals"
)

func (v Env) approvals() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "approvals [show|approve|deny NODE ID]", Short: "list the calls that wait on all nodes, and decide", Args: exit.Args(cobra.NoArgs),
		Long: `Lists the calls that wait on all nodes, up to 20 of each. A decision is signed with the operator's key, for this node, this
request as it was shown, and 15 minutes. The node checks that, records the name of the key with the decision, and answers.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) error {
			all, err := s.Waits(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return report.JSON(v.Out, all)
			}
			var t report.Table
			for i, w := range all {
				if i == 0 {
					t.Row("NODE", "ID", "AGENT", "TOOL", "ABOUT", "EXPIRES")
				}
				t.Row(w.Node, w.ID, w.Whose(), w.Tool, fmt.Sprintf("%q", report.About(w.Approval)), w.Expires.Local().Format(time.TimeOnly))
			}
			return t.Print(v.Out)
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{
		Use: "show NODE ID", Short: "show a call that waits, and the hash of what is shown", Args: exit.Args(cobra.ExactArgs(2)),
		RunE: v.with(func(ctx context.Context, s *reader.Server, words []string) error {
			w, err := find(ctx, s, words[0], words[1])
			if err != nil {
				return err
			}
			return v.show(w)
		}),
	}, v.decide("approve", true), v.decide("deny", false))
	return c
}

// find returns a request that waits.
func find(ctx context.Context, s *reader.Server, node, id string) (wire.SeenWait, error) {
	all, err := s.Waits(ctx)
	if err != nil {
		return wire.SeenWait{}, err
	}
	for _, w := range all {
		if w.Node == node && w.ID == id {
			return w, nil
		}
	}
	return wire.SeenWait{}, fmt.Errorf("no call %.64q waits on the node %.64q: see scopefs fleet approvals", id, node)
}

// hash returns the hash of what this command shows of a request, whatever the server says that it is.
func hash(w wire.SeenWait) (string, error) {
	if w.Cut {
		return "", fmt.Errorf("the call %s of %s is too large for the fleet: decide on the node, with scopefs approvals", w.ID, w.Node)
	}
	return w.Digest(), nil
}

// show prints all of a request.
func (v Env) show(w wire.SeenWait) error {
	shown, err := hash(w)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(v.Out, "on the node %s\n%s  hash %s\n", printable.Text(w.Node), report.Call(w.Approval, 0, 0), shown)
	return err
}

// decision are the flags of approve and deny.
type decision struct {
	key, shown, reason string
	json               bool
}

func (v Env) decide(word string, approve bool) *cobra.Command {
	var o decision
	c := &cobra.Command{
		Use: word + " NODE ID", Short: word + " a call that waits on a node", Args: exit.Args(cobra.ExactArgs(2)),
		Long: `Shows the call and asks, on a terminal. Elsewhere --shown says which call was seen, by the hash of fleet approvals show. The
exit status is 1 if the node refuses the decision, or does not answer within 15 seconds: the decision may still reach it.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, words []string) error {
			private, err := (credential.Source{File: o.key}).Read(ctx)
			if err != nil {
				return errKey(err)
			}
			w, err := find(ctx, s, words[0], words[1])
			if err != nil {
				return err
			}
			shown, err := v.confirm(w, word, o.shown)
			if err != nil {
				return err
			}
			reason, err := approvals.Reason(o.reason)
			if err != nil {
				return err
			}
			d := order.Decision{
				Node: w.Node, Request: w.ID, Hash: shown, Approve: approve, Reason: reason,
				Expires: time.Now().Add(order.Valid).UTC(), Nonce: order.NewNonce(),
			}
			signed, err := d.Sign(private.Reveal())
			if err != nil {
				return errKey(err)
			}
			out, err := wire.Send.Call(ctx, s.Conn, wire.Order{Node: d.Node, Nonce: d.Nonce, Signed: signed})
			switch {
			case err != nil:
				return err
			case out.Text == "":
				return fmt.Errorf("the node %s does not answer: the decision is valid until %s", w.Node, d.Expires.Local().Format(time.TimeOnly))
			case !out.Done:
				return fmt.Errorf("the node %s refuses: %s", w.Node, out.Text)
			}
			if o.json {
				return report.Line(v.Out, map[string]string{"node": w.Node, "id": w.ID, "outcome": out.Text})
			}
			_, err = fmt.Fprintln(v.Out, printable.Text(fmt.Sprintf("%s on %s: %s", w.ID, w.Node, out.Text)))
			return err
		}),
	}
	keyFlag(c, &o.key)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().StringVar(&o.shown, "shown", "", "only the call with this `HASH`, of fleet approvals show")
	if !approve {
		c.Flags().StringVar(&o.reason, "reason", "", "a `TEXT` for the agent: it reads why")
	}
	return c
}

// confirm returns the hash of the request that the operator has seen.
func (v Env) confirm(w wire.SeenWait, word, shown string) (string, error) {
	now, err := hash(w)
	switch {
	case err != nil:
		return "", err
	case shown != "" && shown != now:
		return "", errors.New("--shown: the call is another one now: see scopefs fleet approvals show")
	case shown != "":
		return now, nil
	case !v.Terminal:
		return "", exit.Usagef("--shown: it is missing: give the hash of scopefs fleet approvals show %s %s", w.Node, w.ID)
	}
	if err := v.show(w); err != nil {
		return "", err
	}
	fmt.Fprintf(v.Out, "%s it? Type yes, and Enter: ", word)
	line, err := bufio.NewReader(io.LimitReader(v.In, 64)).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "yes" {
		return "", errors.New("nothing was decided")
	}
	return now, nil
}
