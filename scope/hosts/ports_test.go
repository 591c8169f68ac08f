package hosts

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPorts: a port leads over the border by the rules of the agent and of all its callers, whatever else these allow.
func TestPorts(t *testing.T) {
	own := Compile(Network{Kind: Rules, Ports: Ports{Published: []Publication{{8080, 80}, {3000, 3000}}, Host: []uint16{5432, 6379}}}, nil)
	assert.True(t, own.Publish(0, 80).Allow)
	assert.True(t, own.Publish(8080, 80).Allow)
	assert.False(t, own.Publish(8081, 80).Allow, "another port of the host")
	assert.False(t, own.Publish(0, 8080).Allow, "it is the host's")
	assert.Equal(t, "network.publish: 8080:80", own.Publish(8080, 80).Rule)
	assert.True(t, own.HostPort(5432).Allow)
	d := own.HostPort(22)
	assert.False(t, d.Allow)
	assert.Equal(t, "set network: {host: {ports: [22]}}", d.Remedy)
	c, _ := own.Connect("127.0.0.1", 5432)
	assert.False(t, c.Allow, "the proxy does not lead there")

	for name, caller := range map[string]*Policy{
		"none": Compile(Network{}, nil), "nil": nil, "rules": Compile(Network{Kind: Rules}, nil),
		"another port of the host": Compile(Network{Kind: Rules, Ports: Ports{Published: []Publication{{81, 80}}}}, nil),
	} {
		if caller == nil {
			assert.False(t, caller.Publish(0, 80).Allow, name)
			assert.False(t, caller.HostPort(80).Allow, name)
			continue
		}
		within := own.Within(caller, "c", "m")
		assert.False(t, within.Publish(0, 80).Allow, name)
		assert.False(t, within.HostPort(5432).Allow, name)
	}
	some := Compile(Network{Kind: Rules, Ports: Ports{Published: []Publication{{8080, 80}}, Host: []uint16{6379}}}, nil)
	within := own.Within(some, "c", "m")
	assert.Equal(t, Ports{Published: []Publication{{8080, 80}}, Host: []uint16{6379}}, within.Opens())
	assert.Equal(t, own.Opens(), own.Within(Compile(Network{Kind: HostNetwork}, nil), "c", "m").Opens(), "which reaches every port of the host")
	assert.Equal(t, Ports{}, Compile(Network{Kind: HostNetwork, Ports: own.Opens()}, nil).Opens())
}
