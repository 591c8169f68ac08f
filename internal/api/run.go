package api

import (
	"context"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/scope"
)

// The messages of runs, which the small command has as well.

type (
	// Run is [client.Run].
	Run = client.Run
	// RunExit is [client.RunExit].
	RunExit = client.RunExit
	// Resume is [client.Resume].
	Resume = client.Resume
	// ToRun is [client.ToRun].
	ToRun = client.ToRun
	// FromRun is [client.FromRun].
	FromRun = client.FromRun
	// Note is [client.Note].
	Note = client.Note
)

// RunRequest is the body of run.
type RunRequest struct {
	client.RunRequest
	Program *RunProgram `json:"program,omitempty"`
}

// RunProgram says what an agent program needs of its sandbox.
type RunProgram struct {
	Name     string   `json:"name"`
	Expose   []string `json:"expose,omitempty"`   // paths of the host, shown read-only
	Networks []string `json:"networks,omitempty"` // presets: it needs the hosts of one of them
	Presets  []string `json:"presets,omitempty"`  // those of Networks that hold for this run
	Prepare  string   `json:"prepare,omitempty"`  // commands of sh(1) in the sandbox before it starts

	Login *login.Login `json:"login,omitempty"` // used where there is no key
}

// Run starts a command. Closing the Run kills it.
func (c *Client) Run(ctx context.Context, id scope.ID, req RunRequest) (*Run, error) {
	return c.Client.Run(ctx, id, req.TTY != nil, func(resume *Resume) any {
		req.Resume = resume
		return req
	})
}
