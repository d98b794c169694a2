// Package calendar knows when the owner has time, and answers mesh.schedule with it.
//
// It reads busy times from iCalendar files and CalDAV collections (RFC 5545, RFC 4791), finds free times inside the
// owner's working hours ([Planner]), decides the answer to a proposal ([Scheduler]), and writes agreed events to the
// owner's calendar ([Book]). It knows no node and sends nothing.
//
// Calendars may contain errors. If something cannot be read, the owner decides; the package never guesses. An
// unreadable calendar is an error of [Planner]. An event with an unclear time blocks all the time that it may take.
// Each is reported as a [Problem].
//
// Start with [NewPlanner].
package calendar
