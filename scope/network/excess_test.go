package network

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExcessRoute: a connection that both allow is told if it leads elsewhere, or has another certificate.
func TestExcessRoute(t *testing.T) {
	t.Parallel()
	network := func(r HostRule) *Rules {
		r.Host = "a.example"
		n, err := Compile(Spec{Allow: []HostRule{r}})
		require.NoError(t, err)
		return n
	}
	plain := network(HostRule{})
	for _, r := range []HostRule{{Address: netip.MustParseAddrPort("127.0.0.1:1")}, {CA: "x"}, {Secret: "KEY"}} {
		assert.Len(t, network(r).Excess(plain), 1, "%+v", r)
		assert.Empty(t, network(r).Excess(network(r)), "%+v", r)
	}
	for _, r := range []HostRule{{Intercept: true}, {Secret: "KEY"}} {
		lost := plain.Excess(network(r))
		require.NotEmpty(t, lost, "%+v", r)
		assert.True(t, lost[0].Unseen, "%+v", r)
		assert.Empty(t, network(HostRule{Intercept: true}).Excess(network(r)), "%+v", r)
	}
	wide, err := Compile(Spec{Allow: []HostRule{{Host: "*.example", Intercept: true}}})
	require.NoError(t, err)
	assert.NotEmpty(t, plain.Excess(wide), "a narrower rule")
	asked, err := Compile(Spec{Ask: []HostRule{{Host: "*"}}})
	require.NoError(t, err)
	assert.NotEmpty(t, asked.Excess(network(HostRule{Intercept: true})), "a tunnel, once approved")
	assert.Empty(t, network(HostRule{Intercept: true}).Excess(plain))
	assert.Len(t, network(HostRule{CA: "x"}).Excess(network(HostRule{Intercept: true})), 1, "it is told, and needs no second line")
	assert.Empty(t, network(HostRule{Secret: "KEY", Methods: []string{"GET"}}).Excess(network(HostRule{Secret: "KEY"})))
}

// TestExcess: of two random networks, each request that only one allows, or asks about, has a rule among what is told.
func TestExcess(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	one := func(all ...string) string { return all[r.IntN(len(all))] }
	names := []string{"a.org", "b.a.org", "c.b.a.org", "d.example", "192.0.2.1", "192.0.2.7"}
	rule := func(list string) HostRule {
		h := HostRule{Host: one(one(names...), "*."+one("a.org", "b.a.org", "org"), "*")}
		if r.IntN(2) == 0 {
			h.Ports = []uint16{[]uint16{443, 80, 8443}[r.IntN(3)]}
		}
		if list == "allow" && r.IntN(2) == 0 {
			h.Methods = []string{one("GET", "PUT")}
		}
		for list == "allow" && r.IntN(2) == 0 {
			h.Paths = append(h.Paths, "/"+text(r, 4, "x", "/", "*", "/**/", "y")+one("", "/**", "[^x]", "{a,/b}"))
		}
		return h
	}
	rules := func(list string, most int) (all []HostRule) {
		for range r.IntN(most) {
			all = append(all, rule(list))
		}
		return all
	}
	network := func() *Rules {
		for {
			n, err := Compile(Spec{Deny: rules("deny", 2), Ask: rules("ask", 3), Allow: rules("allow", 5), Others: r.IntN(4) == 0})
			if err == nil {
				return n
			}
		}
	}
	wider := 0
	for range 3000 {
		now, was := network(), network()
		if r.IntN(8) == 0 {
			was = nil
		}
		excess := now.Excess(was)
		for _, e := range excess {
			if !e.Undecided && e.Method != "" {
				d, _ := now.Request(e.Host, e.Port, e.Method, e.Path)
				old, _ := was.Request(e.Host, e.Port, e.Method, e.Path)
				require.True(t, d.Wider(old), "%+v", e)
			}
		}
		for range 30 {
			host, port, method := one(names...), []uint16{443, 80, 8443, 9}[r.IntN(4)], one("GET", "PUT", "POST")
			path := "/" + text(r, 5, "x", "y", "/x", "/y", "/", ";y", "%2f", "a", "b", "?")
			d, rules := now.decide(host, port, &request{method, path})
			old, _ := was.decide(host, port, &request{method, path})
			if !d.Wider(old) {
				continue
			}
			wider++
			told := func(e Excess) bool {
				if len(rules) == 0 {
					return e.Allows.Host == ""
				}
				return e.Asks == d.Ask && slices.ContainsFunc(rules, func(r hostRule) bool { return assert.ObjectsAreEqual(r.HostRule, e.Allows) })
			}
			require.True(t, slices.ContainsFunc(excess, told), "%s %s:%d%s: %+v before %+v:\n%+v\n%+v", method, host, port, path, d, old, now, was)
		}
	}
	assert.Greater(t, wider, 1000)
}

func text(r *rand.Rand, n int, parts ...string) string {
	var b strings.Builder
	for range 1 + r.IntN(n) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	return b.String()
}
