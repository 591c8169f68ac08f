package usage

import (
	"slices"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope"
)

// Limited returns the agents whose stores are bounded, sorted.
func (p *Pages) Limited() (ids []scope.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, owner := range p.owners {
		if a := p.all[owner]; a.bytes+a.files > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// of returns the account that bounds what stores hold for an agent; nil: nothing does. The caller holds mu.
func (p *Pages) of(id scope.ID) *account {
	if a := p.all[p.owners[id]]; a != nil && a.bytes+a.files > 0 {
		return a
	}
	return nil
}

// Bounds reports whether what stores hold for an agent is bounded.
func (p *Pages) Bounds(id scope.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(id) != nil
}

// Hold replaces what a store holds for an agent.
func (p *Pages) Hold(id scope.ID, store string, use quota.Use) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.of(id); a != nil {
		a.stores[store+"/"+string(id)] = use
		a.publish()
	}
}

// Take takes room until give is called; nil: there is not enough. Nothing is always there.
func (p *Pages) Take(id scope.ID, grows quota.Use) (give func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of(id)
	if a == nil {
		return func() {}
	}
	a.take(grows)
	if bytes, files := a.over(); grows.Bytes > 0 && bytes > 0 || grows.Files > 0 && files > 0 {
		a.give(grows)
		return nil
	}
	return p.giving(a, grows)
}

// TakeHalf takes half of the bytes that are left until give is called, and returns how many; nil: there is no limit.
func (p *Pages) TakeHalf(id scope.ID) (half *int64, give func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of(id)
	if a == nil || a.bytes == 0 {
		return nil, func() {}
	}
	over, _ := a.over()
	grows := quota.Use{Bytes: max(-over, 0) / 2}
	for a.take(grows); grows.Bytes > 0; grows.Bytes /= 2 {
		if over, _ := a.over(); over <= 0 {
			break
		}
		a.give(quota.Use{Bytes: grows.Bytes - grows.Bytes/2}) // a view was faster
	}
	return &grows.Bytes, p.giving(a, grows)
}

func (p *Pages) giving(a *account, grows quota.Use) func() {
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		a.give(grows)
	}
}

// take adds to what is under way. Views see it before over looks at what they have under way, and they do likewise: of two that
// take the same room at least one finds it taken. The caller holds mu.
func (a *account) take(grows quota.Use) {
	a.pending = a.pending.Plus(grows)
	a.publish()
}

// give gives back what take took. The caller holds mu.
func (a *account) give(grows quota.Use) {
	a.pending.Bytes -= grows.Bytes
	a.pending.Files -= grows.Files
	a.publish()
}

// over returns how much more there is, with what is under way, than may be: less than nothing is room. The caller holds mu.
func (a *account) over() (bytes, files int64) {
	use := a.use().Plus(a.pending)
	if a.page != nil {
		use.Bytes += a.page.Pending()
	}
	bytes, files = use.Bytes-a.bytes, use.Files-a.files
	if a.bytes == 0 {
		bytes = -1
	}
	if a.files == 0 {
		files = -1
	}
	return bytes, files
}
