"""Results for people: tables (`text`), pictures (`plots`), timelines (`perfetto`)."""
