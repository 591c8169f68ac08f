package agents

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// policyField reads the key policy, which may have trust in one of two places.
func policyField(fields map[string]field) field {
	read := mappingField(fields)
	return func(n *yaml.Node) error {
		var wrong problems
		wrong.add(n.Line, read(n))
		if mcp := valueOf(n, "mcp"); mcp != nil && hasKey(n, "mcp_servers") && hasKey(mcp, "mcp_servers") {
			wrong.add(valueOf(n, "mcp_servers").Line, errors.New("mcp_servers: is also in policy.mcp, which says the same: keep one"))
		}
		return wrong.err()
	}
}

func trustField(key string, out *[]string, refs *[]ref) field {
	return func(n *yaml.Node) error {
		return eachKey(n, func(name string, value *yaml.Node) error {
			trusted := false
			*refs = append(*refs, ref{value.Line, key, trustRef, name})
			err := mappingField(map[string]field{"trust": switchField(&trusted)})(value)
			if err != nil {
				return atLine(value.Line, fmt.Errorf("%s: %w", name, err))
			}
			if trusted {
				*out = append(*out, name)
			}
			return nil
		})
	}
}
