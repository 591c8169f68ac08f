package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope/network"
)

// Console is what scopefs.yaml says of the web page: the key console.
type Console struct {
	Push []string // services that wake paired devices: see ParsePushService. None: no device is woken
}

func (c *Console) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"push": fields.Texts(&c.Push, "push", func(text string) error {
			_, err := ParsePushService(text)
			return err
		}),
	}
}

// PushService is a push service, or those of several hosts.
type PushService struct {
	host network.HostPattern
	port string
}

// ParsePushService reads HOST, with the port of https, or HOST:PORT. Before a name of two labels or more, "*." stands for one
// or more labels.
func ParsePushService(text string) (PushService, error) {
	host, port, err := splitPort(text)
	if err != nil {
		return PushService{}, err
	}
	if name, wild := strings.CutPrefix(host, "*"); wild && strings.Count(strings.Trim(name, "."), ".") == 0 {
		return PushService{}, fmt.Errorf("%.80q: covers the hosts of others: write two labels or more after the star", text)
	}
	pattern, err := network.ParseHostPattern(host)
	return PushService{pattern, port}, err
}

// Match reports whether a HOST:PORT of PushHost is the service.
func (s PushService) Match(service string) bool {
	host, port, err := net.SplitHostPort(service)
	return err == nil && port == s.port && s.host.Match(host)
}

// PushHost returns HOST:PORT of HOST, with the port of https, or of HOST:PORT.
func PushHost(text string) (string, error) {
	host, port, err := splitPort(text)
	if err == nil {
		host, err = network.ParseHost(host)
	}
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

func splitPort(text string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(text)
	if err != nil {
		host, port = text, "443"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", "", fmt.Errorf("%.80q: %.20q is no port: write HOST or HOST:PORT", text, port)
	}
	return host, strconv.FormatUint(n, 10), nil
}
