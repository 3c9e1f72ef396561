package track

import (
	"encoding/binary"
	"time"
)

// The years whose offsets tell one time zone from another. No log is older, and what is newer has no year without a zone.
const zoneFrom, zoneTo = 2000, 2040

// zonePrint is a hash of what a time zone says of a time, never 0. A zone has several names, and "Local" is the name of any.
func zonePrint(zone *time.Location) uint64 {
	at, end := time.Date(zoneFrom, 1, 1, 0, 0, 0, 0, time.UTC).In(zone), time.Date(zoneTo, 1, 1, 0, 0, 0, 0, time.UTC)
	_, offset := at.Zone()
	b := binary.AppendVarint(nil, int64(offset))
	for _, next := at.ZoneBounds(); !next.IsZero() && next.Before(end); _, next = next.ZoneBounds() {
		_, offset := next.Zone()
		b = binary.AppendVarint(binary.AppendVarint(b, next.Unix()), int64(offset))
	}
	return max(1, fingerprint(0, b))
}

// dated says whether the times that a segment has are those that its lines are taken to be of now, as their file was last written at a
// time. Lines that have no year and no zone are of the last year before that, and of its zone.
func (s *segment) dated(now time.Time) bool {
	if s.zone == 0 {
		return true
	}
	const day = 24 * time.Hour
	least, most := s.times()
	return s.zone == zonePrint(now.Location()) && !time.UnixMicro(most).After(now.Add(day)) &&
		(least == 0 || time.UnixMicro(least).AddDate(1, 0, 0).After(now.Add(day)))
}

// timely says whether a segment can be used for a log. One of another time zone is made anew, if that can be: otherwise it is used, but for its
// times, and so is one that has guessed another year.
func (x *run) timely(s *source, seg *segment) bool {
	if seg.dated(s.now) {
		return true
	}
	if seg.zone != zonePrint(s.now.Location()) && x.store.lock != nil {
		if !x.zoneTold {
			x.Warn("the index was made in another time zone than %s, in which lines without one are read: it is made anew", s.now.Format("MST (-0700)"))
		}
		x.zoneTold = true
		return false
	}
	seg.undated = true
	return true
}
