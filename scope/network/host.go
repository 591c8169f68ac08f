package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// ErrHost reports a host that has no canonical form.
var ErrHost = errors.New("malformed host")

// ParseHost returns the canonical form of a host name or an IP address: lower
// case, ASCII (RFC 5891), without a final dot; an IPv4-mapped address as the IPv4
// address. An address in brackets is an error: the caller splits host and port.
//
// The error wraps ErrHost. It also reports what some programs take for an IPv4
// address, such as 0x7f.1, 2130706433 and 0177.0.0.1: a name whose last label is
// a number (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func ParseHost(text string) (string, error) {
	if !utf8.ValidString(text) { // idna would replace the bytes
		return "", fmt.Errorf("%w: %.100q is no UTF-8", ErrHost, text)
	}
	host := text
	if !isASCII(host) {
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", fmt.Errorf("%w: %.100q is no international name", ErrHost, text)
		}
		host = ascii
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return "", fmt.Errorf("%w: %.100q has a zone", ErrHost, text)
		}
		return ip.Unmap().String(), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if len(host) > maxHost {
		return "", fmt.Errorf("%w: it has more than %d bytes", ErrHost, maxHost)
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if !isLabel(label) {
			return "", fmt.Errorf("%w: %.100q is no name: write letters, digits and hyphens with dots between them", ErrHost, text)
		}
		last = label
	}
	if isNumber(last) {
		return "", fmt.Errorf("%w: %.100q is an odd spelling of an address: write 127.0.0.1 or ::1", ErrHost, text)
	}
	return host, nil
}

// The limits of a host name and of its labels, in bytes (RFC 1035, section 2.3.4).
const (
	maxHost  = 253
	maxLabel = 63
)

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

func isLabel(s string) bool {
	return s != "" && len(s) <= maxLabel && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// isNumber reports whether inet_aton(3) may read a label: decimal, octal or
// hexadecimal.
func isNumber(label string) bool {
	digits, set := label, "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		digits, set = hex, "0123456789abcdef"
	}
	return strings.Trim(digits, set) == ""
}

// HostPattern is the host of a HostRule.
type HostPattern struct {
	host string // canonical; of "*.example.org" ".example.org", of "*" ""
	wild bool
}

// ParseHostPattern reads the host of a [HostRule]: a name, an address, "*" or "*." before
// a name. The error wraps ErrHost.
func ParseHostPattern(text string) (HostPattern, error) {
	if text == "*" {
		return HostPattern{wild: true}, nil
	}
	rest, wild := strings.CutPrefix(text, "*.")
	host, err := ParseHost(rest)
	if err != nil {
		return HostPattern{}, err
	}
	if _, err := netip.ParseAddr(host); err == nil && wild {
		return HostPattern{}, fmt.Errorf("%w: an address has no labels: remove the wildcard", ErrHost)
	}
	if wild {
		host = "." + host
	}
	return HostPattern{host, wild}, nil
}

// Match reports whether the pattern covers a canonical host. A wildcard stands
// for one or more labels of a name, and for no address.
func (p HostPattern) Match(host string) bool {
	if !p.wild {
		return host == p.host
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	return strings.HasSuffix(host, p.host) && len(host) > len(p.host)
}

// narrower reports whether p covers fewer hosts than o, given that both cover one.
func (p HostPattern) narrower(o HostPattern) bool {
	if p.wild != o.wild {
		return o.wild
	}
	return len(p.host) > len(o.host)
}
