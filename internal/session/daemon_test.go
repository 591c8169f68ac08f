package session

import (
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// nothing is a Daemon that has no view, no operator and no store. A test gives it what else it needs.
type nothing struct{ Daemon }

func (nothing) View() View                        { return nil }
func (nothing) Approvals() *approvals.Set         { return nil }
func (nothing) StoreTools() ([]tools.Tool, error) { return nil, nil }
