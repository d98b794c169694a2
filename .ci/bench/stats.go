package main

import (
	"slices"
	"time"
)

// sample is the result of one round.
type sample struct {
	Ops     int
	Errors  int
	Elapsed time.Duration
	P50     time.Duration
	P99     time.Duration
	// CPU is the processor time that the server used in the round; 0 if it is unknown.
	CPU time.Duration
	// Fault is the first error of the round.
	Fault string
}

func (s sample) rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Ops) / s.Elapsed.Seconds()
}

// p99 returns the 99th percentile in microseconds.
func (s sample) p99() float64 { return micros(s.P99) }

// cost returns the server's processor time per operation in microseconds; 0 if it is unknown.
func (s sample) cost() float64 {
	if s.Ops == 0 {
		return 0
	}
	return micros(s.CPU) / float64(s.Ops)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// quantile returns the value that the fraction q of all values does not exceed. took must be sorted.
func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[min(int(float64(len(took))*q), len(took)-1)]
}

// median returns the middle value, or the mean of the two in the middle, or 0 without values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	if len(v)%2 == 1 {
		return v[mid]
	}
	return (v[mid-1] + v[mid]) / 2
}

func medianOf(rounds []sample, property func(sample) float64) float64 {
	values := make([]float64, len(rounds))
	for i, s := range rounds {
		values[i] = property(s)
	}
	return median(values)
}

// ratio divides, in each round, the property of the tested sample by the property of the control's, and returns the
// median of the quotients. It leaves out rounds in which the property of the control is 0.
func ratio(tested, control []sample, property func(sample) float64) float64 {
	var values []float64
	for i := range min(len(tested), len(control)) {
		if divisor := property(control[i]); divisor > 0 {
			values = append(values, property(tested[i])/divisor)
		}
	}
	return median(values)
}
