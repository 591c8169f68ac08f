package agents

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/catalog"
)

// policyField reads the key policy, which may have trust in one of two places.
func policyField(keys map[string]fields.Field) fields.Field {
	read := fields.Mapping(keys)
	return func(n *yaml.Node) error {
		var wrong fields.Problems
		wrong.Add(n.Line, read(n))
		mcp, own := frontmatter.Value(n, "mcp"), frontmatter.Value(n, "mcp_servers")
		if mcp != nil && own != nil && frontmatter.Value(mcp, "mcp_servers") != nil {
			wrong.Add(own.Line, errors.New("mcp_servers: is also in policy.mcp, which says the same: keep one"))
		}
		return wrong.Err()
	}
}

func trustField(key string, out *[]string, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			trusted := false
			*refs = append(*refs, catalog.Ref{Line: value.Line, Key: key, Kind: catalog.TrustRef, Text: name})
			err := fields.Mapping(map[string]fields.Field{"trust": fields.Switch(&trusted)})(value)
			if err != nil {
				return fields.AtLine(value.Line, fmt.Errorf("%s: %w", name, err))
			}
			if trusted {
				*out = append(*out, name)
			}
			return nil
		})
	}
}
