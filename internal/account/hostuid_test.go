package account

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestHostID(t *testing.T) {
	for name, tc := range map[string]struct {
		idMap    string
		id, want uint32
	}{
		"host":             {"         0          0 4294967295\n", 7, 7},
		"ordinary user":    {"         0       1001          1\n", 0, 1001},
		"overflow user":    {"         0       1001          1\n", 65534, 65534},
		"second range":     {"0 1001 1\n1 100000 65536\n", 3, 100002},
		"behind the range": {"5 100 2\n", 7, 7},
		"before the range": {"5 100 2\n", 4, 4},
		"no map":           {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, hostID(tc.idMap, tc.id)) })
	}
}
