// Package stores opens the shared stores that scopefs.yaml configures and makes
// their tools. A store is opened when its first call needs it; one that cannot be
// opened fails its own calls only, and is tried again.
package stores

import (
	"errors"
	"net/url"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/http"
)

// Stores are the stores of one daemon.
type Stores struct {
	config agents.Stores
}

// New returns the stores of a configuration. It opens none of them.
func New(config agents.Stores) *Stores { return &Stores{config: config} }

// Tools returns the tools of all configured stores. They are the same for every
// agent: the door applies their strategies to the agent of each call.
func (s *Stores) Tools() (all []tools.Tool, err error) {
	if len(s.config.Services) > 0 {
		list, err := s.services()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func (s *Stores) services() ([]tools.Tool, error) {
	all := map[string]http.Service{}
	for name, c := range s.config.Services {
		u, err := url.Parse(c.URL)
		if err != nil {
			return nil, errors.New(name + ": url: is no address: write https://HOST/PATH")
		}
		all[name] = http.Service{
			URL: u, Agents: c.Allows, Methods: c.Methods, Paths: c.Paths, Addresses: c.Addresses,
			Credential: c.Credential, Header: c.Header, Prefix: c.Prefix, Timeout: c.Timeout,
		}
	}
	return http.New(all)
}

// Known returns the tools of a configuration as definitions may name them.
func Known(config agents.Stores) (known agents.Tools, err error) {
	all, err := New(config).Tools()
	for _, t := range all {
		known = append(known, agents.Tool{Name: t.Name, Aliases: t.Aliases, Writes: t.Hints.Writes})
	}
	return known, err
}
