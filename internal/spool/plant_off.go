//go:build !spoolplant

package spool

// planter has no fault planted.
type planter struct{}

func plantOf(fault) planter { return planter{} }

func (planter) planted(fault) bool { return false }

func (*engine) plantFreeEarly() {}

func (*engine) plantAppendOld() {}
