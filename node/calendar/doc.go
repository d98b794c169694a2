// Package calendar finds out when the owner has time, and answers messages of mesh.schedule accordingly.
//
// It reads busy times from iCalendar files and CalDAV collections (RFC 5545, RFC 4791), finds free times inside the
// owner's working hours ([Planner]), decides the answer to a proposal ([Scheduler]), and writes agreed events to the
// owner's calendar ([Book]). It does not depend on a node and sends no messages. Calendars may contain errors. The
// package never guesses: if a calendar cannot be read, [Planner] returns an error and the owner decides. If only the
// time of an event is unclear, all the time that the event may take counts as busy, and a [Problem] reports the event.
//
// Start with [NewPlanner].
package calendar
