package history

// Newest returns the last generation that sel means, without its changes and its size; of a selection with a checkpoint, the checkpoint.
// The histories of an agent's directories have their generations apart: their caller selects the same session, time or undo in all.
func (s *Store) Newest(sel Selection) (*Generation, error) {
	all, err := s.outlines()
	if err != nil {
		return nil, err
	}
	g, err := (*generationRecords)(nil), error(nil)
	if sel.Checkpoint != "" {
		g, err = sel.point(all)
	} else {
		var picks func(*generationRecords) bool
		if picks, _, err = sel.resolve(all); err == nil {
			g = last(all, picks)
		}
	}
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, &ErrNothing{"nothing was changed", true}
	}
	return &Generation{ID: idOf(g.began), Began: timeOf(g.began), Last: timeOf(max(g.until, g.began)), Header: g.Header}, nil
}
