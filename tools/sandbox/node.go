package sandbox

import "strings"

// nodeOptions is a variable whose options every Node.js takes before those of its command line.
const nodeOptions = "NODE_OPTIONS"

// nodeModule is a module for each Node.js in a sandbox with a proxy, in /etc. Node.js 22 warns that it finds the proxy by the
// environment. Its option against one warning would end older versions, and NODE_NO_WARNINGS hides all warnings.
const (
	nodeModule     = "scopefs-node.cjs"
	nodeModuleText = `// Node.js 22 does not print that EnvHttpProxyAgent is experimental.
'use strict';
if (/^6\./.test(process.versions.undici)) {
  const emit = function (name, warning) {
    if (name !== 'warning' || warning?.code !== 'UNDICI-EHPA') return Object.getPrototypeOf(process).emit.apply(this, arguments);
    if (process.emit === emit) delete process.emit;
    return true;
  };
  process.emit = emit;
}
`
)

// nodeEnv returns nodeOptions with what the caller has set.
func (s *Spec) nodeEnv(set string) string {
	if !s.Proxy {
		return set
	}
	return strings.TrimSpace("--require=/etc/" + nodeModule + " " + set)
}
