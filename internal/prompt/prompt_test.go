package prompt

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/tools/approvals"
)

// TestAlwaysOwnAddress: no key writes a rule that reaches this host or an address that is not public: the agent chooses the name, the
// question does not say what the rule opens, and scopefs allow does.
func TestAlwaysOwnAddress(t *testing.T) {
	for subject, want := range map[string]bool{
		"localhost:22": false, "127.0.0.1:80": false, "[::1]:443": false, "169.254.169.254:80": false, "10.0.0.5:443": false,
		"[fe80::1]:443": false, "[fd00::1]:443": false,
		"host.example:443": true, "1.1.1.1:443": true, "a.localhost:443": true, // by a public address alone
	} {
		q := questionOf(approvals.Approval{Tool: "network", Kind: approvals.KindHost, Subject: subject, Lasting: true}, "")
		var keys []string
		for _, o := range q.Options {
			keys = append(keys, o.Key)
		}
		assert.Equal(t, want, strings.Contains(strings.Join(keys, ""), always), subject)
	}
}
