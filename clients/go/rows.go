package tablegate

import (
	"maps"

	"google.golang.org/protobuf/proto"
)

// Change is a key, and its row now; Deleted: it has none any more, and Row is nil.
type Change[Row proto.Message] struct {
	Key     Key
	Row     Row
	Deleted bool
}

type entry[Row proto.Message] struct {
	key Key
	row Row
}

// rows is a copy of a table, made of a subscription's events: no I/O, and no lock.
//
// Nobody sees half of a snapshot: the first is shown when it is complete, and a later one replaces the rows at once.
type rows[Row proto.Message] struct {
	shown    map[string]entry[Row]
	snapshot map[string]entry[Row] // nil where none is on its way
	isShared bool                  // somebody goes through shown: the next change goes into a copy
}

// share returns the rows of this moment.
func (r *rows[Row]) share() map[string]entry[Row] {
	r.isShared = true
	return r.shown
}

// apply applies an event, and returns the changes that readers see by it.
func (r *rows[Row]) apply(event *Event[Row]) []Change[Row] {
	switch event.Kind {
	case Reset:
		r.snapshot = map[string]entry[Row]{}
	case Upsert, Delete:
		return r.change(event)
	case Current:
		return r.publishSnapshot()
	}
	return nil
}

func (r *rows[Row]) change(event *Event[Row]) []Change[Row] {
	into := r.snapshot
	if into == nil {
		if r.isShared || r.shown == nil {
			r.shown, r.isShared = maps.Clone(r.shown), false
		}
		if r.shown == nil {
			r.shown = map[string]entry[Row]{}
		}
		into = r.shown
	}
	if event.Kind == Upsert {
		into[event.Key.String()] = entry[Row]{event.Key, event.Row}
	} else {
		delete(into, event.Key.String())
	}
	if r.snapshot != nil {
		return nil
	}
	return []Change[Row]{{event.Key, event.Row, event.Kind == Delete}}
}

func (r *rows[Row]) publishSnapshot() []Change[Row] {
	if r.snapshot == nil {
		return nil
	}
	var changes []Change[Row]
	for text, old := range r.shown {
		if _, stays := r.snapshot[text]; !stays {
			changes = append(changes, Change[Row]{Key: old.key, Deleted: true})
		}
	}
	for text, now := range r.snapshot {
		if old, was := r.shown[text]; was && proto.Equal(old.row, now.row) {
			r.snapshot[text] = old // who compares rows by identity sees no change
		} else {
			changes = append(changes, Change[Row]{Key: now.key, Row: now.row})
		}
	}
	r.shown, r.snapshot, r.isShared = r.snapshot, nil, false
	return changes
}
