package egress

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/mask"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// access is one connection or request, from the decision to the end.
type access struct {
	in           *incoming
	op           string // connect or request, or a Way
	way          Way    // of a Port; "": of no port
	at           uint16 // of a Port: At
	host         string
	port         uint16
	method, path string // of a request
	field        string // see misread
	parameter    bool   // the query has one that some servers take for the method
	scheme       string
	upgrade      bool // of a request to another protocol
	proto        int  // major version of HTTP
	began        time.Time
	decision     scope.Decision
	route        network.Route // of a connection
	secret       string        // of a request
	question     Question      // that the operator has approved, if asked
	asked        atomic.Bool   // the rules want an approval, and the operator's holds
	many         bool          // it stands for requests that differ; see folds
	unrecorded   int64         // of them
	status       int
	sent, got    atomic.Int64 // bytes to the host and from it
	remote       string
	upward       bool                    // the upstream proxy connects to the host
	local        bool                    // the rule has an address of this host's loopback
	watched      bool                    // the body of a request is looked at: see watchMethod
	divided      bool                    // of such a request: the rules do not allow every method
	spent        *refusal                // no byte is left for it
	failure      *refusal                // of an exchange
	stopped      atomic.Pointer[refusal] // of a request whose body may not pass further
	mask         *mask.Mask              // of the response
	took         time.Duration           // when it has ended; 0: until now
	again        bool                    // an earlier daemon may have recorded its end
	id           uint64                  // see Case
	dials        atomic.Int32            // see maxDials
	ending       bool                    // its end is recorded, or is about to be; guarded by Monitor.mu
}

// lasted returns how long the access has lasted, or lasts.
func (a *access) lasted() time.Duration {
	if a.took > 0 {
		return a.took
	}
	return time.Since(a.began)
}

func (p *Proxy) newAccess(in *incoming, op string) *access {
	return &access{in: in, op: op, began: time.Now()}
}

// judge decides about a request. One whose method or path servers read differently is allowed where the rules
// allow every method, or every method and path.
func (a *access) judge(rules Rules) (scope.Decision, string) {
	d, secret := rules.Request(a.host, a.port, a.method, a.path)
	what, path := "the field "+a.field, ""
	if a.field == "" {
		what, path = "the parameter _method", a.path
	}
	if a.field == "" && !a.parameter || !d.Allow && !d.Ask {
		return d, secret
	}
	if _, divided := a.divides(rules, path); divided {
		d = renamed(d.Rule, what)
	}
	return d, secret
}

// divides reports whether rules that allow a request do not allow it with every method, at a path or, for "", at every path.
func (a *access) divides(rules Rules, path string) (d scope.Decision, divided bool) {
	d, secret := rules.Request(a.host, a.port, a.method, a.path)
	every, other := rules.Request(a.host, a.port, "", path)
	return d, !every.Allow && !every.Ask || other != secret
}

// renamed is the decision about a request with what some servers take for its method or its path.
func renamed(rule, what string) scope.Decision {
	what = fmt.Sprintf("%.120s", what)
	return scope.Decision{
		Kind: scope.KindField, Rule: fmt.Sprintf("%s, without %s", rule, what),
		Remedy: fmt.Sprintf("leave out %s: some servers read another method or path there", what),
	}
}

func (t *tenancy) tellRefused(a *access, r *refusal) {
	of := t.of.Load()
	if of.Refused != nil {
		host := a.host
		if a.way != "" || r.unmade { // no rule of hosts allows it
			host = ""
		}
		if host != "" && a.port != 443 && a.port != 80 {
			host = net.JoinHostPort(host, strconv.Itoa(int(a.port)))
		}
		text, remedy := r.Message, r.remedy
		if r.keyless && of.Operator {
			text, remedy = r.detail(), ""
		}
		of.Refused(host, oneLine(text), oneLine(remedy))
	}
}

func (r *refusal) detail() string {
	if r.cause != nil {
		return r.Message + ": " + r.cause.Error()
	}
	return r.Message
}

// target names the access, without the query of a request.
func (a *access) target() string {
	switch {
	case a.host == "":
		return ""
	case a.op == "request" && !a.many:
		return a.method + " " + a.scheme + "://" + authorityOf(a.host, a.port, a.scheme) + a.path
	}
	return authorityOf(a.host, a.port, "")
}

// authorityOf is HOST:PORT as a URL has it; the default port of the scheme is left out.
func authorityOf(host string, port uint16, scheme string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == map[string]uint16{"http": 80, "https": 443}[scheme] {
		return host
	}
	return fmt.Sprintf("%s:%d", host, port)
}
