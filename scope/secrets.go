package scope

// Secrets is the name of SecretRules.
const Secrets = "secrets"

// secrets match files that hold secrets by their nature. A sealed file that git tracks is no change to git. Each pattern matches a
// name in any directory, so that no rule prevents the move of a directory, and leaves names alone that are not secret: templates
// of dotenv files (.env.example, .env.sample, .env.template), the bundles of CAs that packages install (cacert.pem, roots.pem),
// public keys and sources such as id_utils.go. The strictest rule holds, so that a pattern cannot have exceptions: it spells out
// the other names.
var secrets = []string{
	"**/.env",
	"**/.env.{[^est]*,e[^x]*,s[^a]*,sa[^m]*,t[^e]*,te[^m]*}",
	"**/{[^cr]*,c,c[^a]*,ca[^c]*,r,r[^o]*,roo[^t]*,root,root[^s]*}.pem",
	"**/id_{rsa,dsa,ecdsa,ed25519}{,_sk}",
}

// SecretRules returns the rules that view: {secrets} stands for: dotenv files, keys and private keys of SSH have an access.
func SecretRules(access Access) (all []PathRule) {
	for _, pattern := range secrets {
		all = append(all, PathRule{Pattern: pattern, Access: access, Name: Secrets})
	}
	return all
}
