package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/scopefs/scopefs/scope"
)

// ForgetRequest is the body of forget. Without Do nothing is removed.
type ForgetRequest struct {
	Do bool `json:"do"`
}

// Forgotten is what the daemon removes, or has removed.
type Forgotten struct {
	Paths  []string `json:"paths"`
	Parts  []Part   `json:"parts,omitempty"`
	Tokens []Token  `json:"tokens,omitempty"`
	Left   []Left   `json:"left,omitempty"`
}

// Left is what an agent may have on a server, and stays there.
type Left struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"` // removes it; "": no command does
}

// Part is what a shared store holds for an agent.
type Part struct {
	Store string `json:"store"`
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`
}

// Lines returns what is removed, a line each.
func (f Forgotten) Lines() []string {
	lines := slices.Clone(f.Paths)
	for _, p := range f.Parts {
		lines = append(lines, fmt.Sprintf("%d bytes in the store %s (%s)", p.Bytes, p.Store, p.Kind))
	}
	for _, t := range f.Tokens {
		lines = append(lines, "token "+t.ID)
	}
	return lines
}

// Stays returns what is left, a line each.
func (f Forgotten) Stays() (lines []string) {
	for _, l := range f.Left {
		line := l.What
		if l.Command != "" {
			line += ", if it was used: " + l.Command
		}
		lines = append(lines, line)
	}
	return lines
}

// Forget returns what a base keeps of an agent, and with do removes it.
func (c *Client) Forget(ctx context.Context, id scope.ID, do bool) (Forgotten, error) {
	return fetch[Forgotten](ctx, c, http.MethodPost, "/v1/agents/"+string(id)+"/forget", ForgetRequest{Do: do})
}
