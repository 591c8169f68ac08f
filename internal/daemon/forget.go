package daemon

import (
	"fmt"
	"net/http"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/forget"
	"github.com/scopefs/scopefs/scope"
)

// forget removes what the base keeps of an agent that has no view and no session. The agent may have no definition any more.
func (d *Daemon) forget(_ http.ResponseWriter, r *http.Request) (any, error) {
	var req api.ForgetRequest
	if err := body(r, &req); err != nil {
		return nil, err
	}
	id, err := scope.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	made := api.Forgotten{Left: forget.Left(d.Settings.Stores, id)}
	remove := func() error {
		var histories, databases string
		if def, err := d.Definition(id); err == nil {
			histories = def.History.Dir
			if def.Branch != "" {
				return invalid("%s is a branch: scopefs branch remove %s", id, id)
			}
		}
		if sql := d.Settings.Stores.SQL; sql != nil {
			databases = sql.Dir
		}
		made.Paths = forget.Agent(d.Paths, id, histories, databases)
		parts, err := d.Stores.Parts(r.Context(), id)
		if err != nil {
			return err
		}
		for _, p := range parts {
			made.Parts = append(made.Parts, api.Part{Store: p.Store, Kind: p.Kind, Bytes: p.Bytes})
		}
		if made.Tokens, err = d.tokensOf(string(id)); err != nil || !req.Do {
			return err
		}
		uid, _ := api.PeerOf(r.Context())
		if err := d.Record(r.Context(), audit.Event{Event: audit.KindAgent, Agent: string(id), Outcome: "forgotten", UID: &uid,
			Detail: fmt.Sprintf("paths: %d, stores: %d, tokens: %d", len(made.Paths), len(parts), len(made.Tokens))}); err != nil {
			return err
		}
		if err := d.Approvals.ForgetAll(id); err != nil {
			return err
		}
		if err := d.revokeTokens(r.Context(), made.Tokens); err != nil {
			return err
		}
		if err := d.Stores.Forget(r.Context(), id, parts); err != nil {
			return err
		}
		d.Stores.End(id)
		return forget.Remove(made.Paths)
	}
	if a := d.agent(id); a != nil {
		err = a.Unused(r.Context(), remove)
	} else {
		err = remove()
	}
	return made, err
}
